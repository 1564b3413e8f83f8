// Second derivatives of the Neural Power Unit family: the derivatives of its gradients along a direction. One of them
// is the derivative of y along it, which forward mode takes. npu/forward.cpp has the notation.
//
// In complex numbers the layer is y = Re w, w = y + i s = exp(e), e = W u, W = Wr + i Wi, u = L + i pi ghat m. A
// direction in x, the weights and the gate changes u by u' and W by V. Then
//
//   e' = W u' + V u              dy = Re(w e')
//   d  = grad_y conj(w)          the gradient of e, of sum(grad_y y)
//   f  = grad_y conj(w e')       the derivative of d along the direction
//
// and of S = sum(grad_y dy), the inner product of the gradients with the direction, where W* is conj(W) transposed:
//
//   dS/dgrad_y = dy
//   dS/dW = sum over rows of f conj(u) + d conj(u')
//   dS/du = W* f + V* d          dS/du' = W* d
//
// The terms with f come through e alone. Where the caller wants the gradients of y and s, grad_y P' and -grad_y Q',
// they are left out.
//
// u and u' give theirs to x and the gate. With n = |x| + eps, r = ghat n + 1 - ghat:
//
//   L' = tx v_x + tg v_gate      tx = ghat sign(x) / r, tg = (n - 1) / r      Im u' = pi m v_gate
//   dtx/dx = -tx tx              dtg/dghat = -tg tg                           dtx/dghat = dtg/dx = sign(x) / (r r)
//
// Every product is of one complex array's conjugate and another array: conj(e') = conj(W) conj(u') + conj(V) conj(u).
// Imaginary parts may be absent: RealNPU has no Wi, rows without negative values no Im u. Rows go in blocks, as in
// nalu.cpp.
#include "api.h"
#include "layers/npu.h"
#include "product.h"
#include "row_groups.h"
#include "simd/vector_math.h"

namespace npu {
namespace NPU_ISA {
namespace {

// A weight matrix of every model as panels of add_products.
template <typename T>
class MatrixPanels {
 public:
  MatrixPanels(const NpuInputs<T>& in, const T* weight, bool over_outputs, const Parallel& parallel)
      : size_(weight == nullptr ? 0 : panel_size<T>(in.in, in.out, over_outputs)), panels_(in.models * size_) {
    if (weight == nullptr) return;
    parallel.over(in.models, [&](int64_t begin, int64_t end) {
      for (int64_t model = begin; model < end; ++model)
        pack_panel<T>(weight + model * in.out * in.in, in.in, in.out, over_outputs, panels_ + model * size_);
    });
  }
  // From an input, or out, on, which has `step` elements; null: no matrix.
  const T* at(int64_t model, int64_t n, int64_t step) const {
    return size_ == 0 ? nullptr : panels_ + model * size_ + n * step;
  }

 private:
  const int64_t size_;
  const Scratch<T> panels_;
};

// W and V as panels whose terms are inputs, for e', and outputs, for the gradients of u.
template <typename T>
struct SecondPanels {
  MatrixPanels<T> re, im, along_re, along_im, re_back, im_back, along_re_back, along_im_back;
  SecondPanels(const NpuSecond<T>& f, const Parallel& parallel)
      : re(f.inputs, f.changes_inputs() ? f.inputs.weight_re : nullptr, false, parallel),
        im(f.inputs, f.changes_inputs() ? f.inputs.weight_im : nullptr, false, parallel),
        along_re(f.inputs, f.along_re, false, parallel),
        along_im(f.inputs, f.along_im, false, parallel),
        re_back(f.inputs, f.wants_inputs() ? f.inputs.weight_re : nullptr, true, parallel),
        im_back(f.inputs, f.wants_inputs() ? f.inputs.weight_im : nullptr, true, parallel),
        along_re_back(f.inputs, f.wants_inputs() ? f.along_re : nullptr, true, parallel),
        along_im_back(f.inputs, f.wants_inputs() ? f.along_im : nullptr, true, parallel) {}
};

// The real part of conj(panel) factor, and (want_im) the imaginary one: calls multiply(panels, factors, Products...).
// factor: real part, imaginary part and minus the real one, `next` elements apart. A null panel_im or a
// false has_factor_im: that part is absent; the imaginary part of the product is not touched if both are.
template <typename T, typename Multiply>
void multiply_conjugate(const T* panel_re, const T* panel_im, const T* factor, int64_t next, bool has_factor_im,
                        bool want_im, const Multiply& multiply) {
  const T* const panels[] = {panel_re, panel_im == nullptr ? panel_re : panel_im};
  const T* const factors[] = {factor, factor + next, factor + 2 * next};
  using ReRe = Product<0, 0, 0>;
  using ImIm = Product<1, 1, 0>;
  using ReIm = Product<0, 1, 1>;
  using ImRe = Product<1, 2, 1>;
  if (panel_im != nullptr && has_factor_im && want_im) multiply(panels, factors, ReRe{}, ImIm{}, ReIm{}, ImRe{});
  else if (panel_im != nullptr && has_factor_im) multiply(panels, factors, ReRe{}, ImIm{});
  else if (panel_im != nullptr && want_im) multiply(panels, factors, ReRe{}, ImRe{});
  else if (has_factor_im && want_im) multiply(panels, factors, ReRe{}, ReIm{});
  else multiply(panels, factors, ReRe{});
}

// The sums over rows of one model: of dS/dW [part][outputs][inputs], padded, and of dS/dgate [inputs].
template <typename T>
struct SecondSums {
  int64_t inputs, matrix, parts, size;
  explicit SecondSums(const NpuInputs<T>& in)
      : inputs(round_up(in.in, Simd<T>::width)),
        matrix(round_up(in.out, kFewColumns) * inputs),
        parts(in.weight_im != nullptr ? 2 : 1),
        size(parts * matrix + in.in) {}
};

// One row group of one model.
template <typename T>
class SecondGroup {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int64_t kBlockSize = kBlockRows * kLanes<T>;
  // Complex numbers as rows, for products over inputs or outputs: three arrays each.
  enum Rows : int { kChange, kInput, kInputRows };          // conj(u'), conj(u)
  enum Upstream : int { kGrad, kAlong, kUpstreamRows };     // d, f
  enum Panel : int { kL, kTurn, kDL, kDTurn, kPanels };     // u and u' of a tile of inputs
  enum Spread : int { kOfU, kOfTurn, kOfChange, kSpread };  // real and imaginary part of dS/du, real part of dS/du'

 public:
  SecondGroup(const NpuSecond<T>& f, const SecondPanels<T>& panels)
      : f_(f),
        in_(f.inputs),
        panels_(panels),
        layout_(in_),
        in_next_(round_up(in_.in * kBlockRows, W) + W),
        // As in nalu.cpp: few outputs lie beside each other, rows of others are an odd number of registers apart.
        stride_(in_.out < W ? in_.out : (ceil_div(in_.out, W) | 1) * W),
        next_(round_up(stride_ * kBlockRows, W) + W),
        gate_(round_up(in_.in, W)),
        along_gate_(round_up(in_.in, W)),
        inputs_(kInputRows * 3 * in_next_),
        upstream_(kUpstreamRows * 3 * next_),
        panel_(kPanels * kBlockSize),
        tile_(kSpread * kBlockSize),
        gate_sums_(in_.in) {
    std::memset(inputs_, 0, size_t(kInputRows * 3 * in_next_) * sizeof(T));  // what is not written is read too
    std::memset(upstream_, 0, size_t(kUpstreamRows * 3 * next_) * sizeof(T));
  }

  // sums: SecondSums, overwritten by those over rows [begin, end); null: not wanted.
  void run(int64_t model, int64_t begin, int64_t end, T* sums) {
    const bool no_terms = begin == end || (f_.through_y() && !f_.changes_inputs());
    if (sums != nullptr && no_terms) std::memset(sums, 0, size_t(layout_.size) * sizeof(T));
    load_gate(model);
    std::memset(gate_sums_, 0, size_t(in_.in) * sizeof(double));
    for (int64_t row = begin; row < end; row += kBlockRows) {
      const int64_t rows = min(kBlockRows, end - row);
      const int64_t x = ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
      const int64_t y = (model * in_.rows + row) * in_.out;
      load_inputs(x, rows);
      for (int64_t o = 0; o < in_.out; o += kLanes<T>) {
        const int64_t outputs = min(kLanes<T>, in_.out - o);
        change_exponents(model, o, rows, outputs);
        load_upstream(y, o, rows, outputs);
      }
      if (!f_.wants_inputs() && sums == nullptr) continue;
      for (int64_t i = 0; i < in_.in; i += kLanes<T>) {
        load_panel(x, rows, i);
        if (f_.wants_inputs()) {
          spread(model, i, rows);
          into_inputs(x, rows, i, f_.grad_x == nullptr ? nullptr : f_.grad_x + (model * in_.rows + row) * in_.in);
        }
        if (sums != nullptr) into_weights(i, rows, row > begin, sums);
      }
    }
    if (sums == nullptr || f_.grad_gate == nullptr) return;
    for (int64_t i = 0; i < in_.in; ++i) sums[layout_.parts * layout_.matrix + i] = T(gate_sums_[i]);
  }

 private:
  // What depends on x and the gate alone: of a register of inputs.
  struct Input {
    Reg r, size, slope_x, slope_gate, change;  // tx, tg, L'
  };

  // ghat and v_gate where it reaches ghat; a NaiveNPU's gate is 1.
  void load_gate(int64_t model) {
    for (int64_t i = 0; i < in_.in; ++i) {
      const T gate = in_.gate == nullptr ? T(1) : in_.gate[model * in_.in + i];
      gate_[i] = clamp_gate(gate);
      const bool along = f_.along_gate != nullptr && f_.gate_passes(gate);
      along_gate_[i] = along ? f_.along_gate[model * in_.in + i] : T(0);
    }
    for (int64_t i = in_.in; i < round_up(in_.in, W); ++i) gate_[i] = along_gate_[i] = T(0);
  }

  NPU_INLINE Input input(Reg x, Reg along_x, int64_t i) const {
    const Reg gate = S::load(gate_ + i), one = S::set1(T(1)), size = S::abs(x) + S::set1(in_.eps);
    const Reg r = S::fma(gate, size, one - gate), inverse = one / r;
    Input at{r, size, S::with_sign_of(gate * inverse, x), (size - one) * inverse, S::zero()};
    at.change = S::fma(at.slope_x, along_x, at.slope_gate * S::load(along_gate_ + i));
    return at;
  }
  NPU_INLINE Reg along_x(int64_t at, int count) const {
    return f_.along_x == nullptr ? S::zero() : S::load_first(f_.along_x + at, count);
  }

  // conj(u') and conj(u) of a block, as they are multiplied by W and V; whether any value is negative.
  void load_inputs(int64_t x, int64_t rows) {
    const Reg pi = S::set1(T(kPi));
    negative_ = false;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < in_.in; i += W) {
        const int count = int(min<int64_t>(W, in_.in - i));
        const int64_t from = x + row * in_.in + i;
        const Reg value = S::load_first(in_.x + from, count);
        typename S::Mask mask;
        negative_ |= S::store_negative(&mask, value);
        T* const to = inputs_ + row * in_.in + i;
        const Reg turn = S::add_masked(S::zero(), mask, -pi);
        const auto store = [&](Rows which, Reg re, Reg im) {
          S::store(to + 3 * which * in_next_, re);
          S::store(to + (3 * which + 1) * in_next_, im);
          S::store(to + (3 * which + 2) * in_next_, -re);
        };
        const Input at = input(value, along_x(from, count), i);
        if (f_.changes_inputs()) store(kChange, at.change, turn * S::load(along_gate_ + i));
        if (f_.changes_weights()) store(kInput, VectorMath<T>::log(at.r), turn * S::load(gate_ + i));
      }
    }
  }

  // conj(e') of some outputs, [part][kBlockRows][kLanes] in tile_.
  void change_exponents(int64_t model, int64_t o, int64_t rows, int64_t outputs) {
    bool resume = false;
    // No product, or one of real numbers, leaves the imaginary part as it is.
    if (!complex() || !f_.changes_inputs() || in_.in == 0) std::memset(tile_, 0, size_t(2 * kBlockSize) * sizeof(T));
    const auto add = [&](const MatrixPanels<T>& re, const MatrixPanels<T>& im, Rows which) {
      const auto multiply = [&](const auto& panels, const auto& factors, auto... products) {
        multiply_rows<T, decltype(products)...>(panels, factors, in_.in, in_.in, rows, outputs, tile_, resume);
      };
      multiply_conjugate<T>(re.at(model, o, in_.in), im.at(model, o, in_.in), inputs_ + 3 * which * in_next_, in_next_,
                            negative_, complex() || negative_, multiply);
      resume = true;
    };
    if (f_.changes_inputs()) add(panels_.re, panels_.im, kChange);
    if (f_.changes_weights()) add(panels_.along_re, panels_.along_im, kInput);
  }

  // dy, and d and f as [rows][stride_], of some outputs from conj(e') in tile_.
  void load_upstream(int64_t y, int64_t o, int64_t rows, int64_t outputs) {
    T *const re = tile_, *const im = tile_ + kBlockSize;
    int64_t lines = rows, next = in_.out;
    if (in_.out < W) {  // few outputs of all rows together, so that they fill registers
      for (T* part : {re, im})
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t l = 0; l < outputs; ++l) part[row * outputs + l] = part[row * kLanes<T> + l];
      outputs *= rows, lines = 1;
    }
    for (int64_t line = 0; line < lines; ++line) {
      for (int64_t l = 0; l < outputs; l += W) {
        const int count = int(min<int64_t>(W, outputs - l));
        const int64_t at = y + line * next + o + l;
        const Reg value = S::load_first(f_.y + at, count), turned = S::load_first(f_.s + at, count);
        const Reg change = S::load(re + line * kLanes<T> + l), turn = S::load(im + line * kLanes<T> + l);
        const Reg of_grad = S::fma(value, change, turned * turn);
        if (f_.grad_grad_y != nullptr) S::store_first(f_.grad_grad_y + at, of_grad, count);
        if (f_.grad_y == nullptr) continue;
        const Reg grad = S::load_first(f_.grad_y + at, count);
        store_upstream(kGrad, line * stride_ + o + l, grad * value, -grad * turned);
        if (f_.through_y()) {
          S::store_first(f_.grad_of_y + at, grad * change, count);
          S::store_first(f_.grad_of_s + at, grad * turn, count);
          continue;
        }
        store_upstream(kAlong, line * stride_ + o + l, grad * of_grad, grad * S::fma(value, turn, -turned * change));
      }
    }
  }
  NPU_INLINE void store_upstream(Upstream which, int64_t at, Reg re, Reg im) {
    T* const to = upstream(which) + at;
    S::store(to, re);
    S::store(to + next_, im);
    S::store(to + 2 * next_, -re);
  }

  // u and u' of up to kLanes inputs, the i-th and following, [part][rows][kLanes].
  void load_panel(int64_t x, int64_t rows, int64_t i) {
    const Reg pi = S::set1(T(kPi));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t l = 0; l < min(kLanes<T>, in_.in - i); l += W) {
        const int count = int(min<int64_t>(W, in_.in - i - l));
        const int64_t from = x + row * in_.in + i + l;
        const Reg value = S::load_first(in_.x + from, count);
        typename S::Mask mask;
        S::store_negative(&mask, value);
        const Reg turn = S::add_masked(S::zero(), mask, pi);
        const Input at = input(value, along_x(from, count), i + l);
        T* const to = panel_ + row * kLanes<T> + l;
        if (!f_.through_y()) S::store(to + kL * kBlockSize, VectorMath<T>::log(at.r));
        S::store(to + kTurn * kBlockSize, turn * S::load(gate_ + i + l));
        S::store(to + kDL * kBlockSize, at.change);
        S::store(to + kDTurn * kBlockSize, turn * S::load(along_gate_ + i + l));
      }
    }
  }

  // dS/du and the real part of dS/du' of some inputs, [Spread][kBlockRows][kLanes] in tile_.
  void spread(int64_t model, int64_t i, int64_t rows) {
    const int64_t lanes = min(kLanes<T>, in_.in - i);
    const bool wants_turn = f_.grad_gate != nullptr && negative_;
    const auto add = [&](const MatrixPanels<T>& re, const MatrixPanels<T>& im, Upstream which, bool want_im, Spread to,
                         bool resume) {
      const auto multiply = [&](const auto& panels, const auto& factors, auto... products) {
        multiply_rows<T, decltype(products)...>(panels, factors, stride_, in_.out, rows, lanes, tile_ + to * kBlockSize,
                                                resume);
      };
      multiply_conjugate<T>(re.at(model, i, in_.out), im.at(model, i, in_.out), upstream(which), next_,
                            complex() || negative_, want_im, multiply);
    };
    if (!f_.through_y()) add(panels_.re_back, panels_.im_back, kAlong, wants_turn, kOfU, false);
    else if (!f_.changes_weights()) std::memset(tile_, 0, size_t(2 * kBlockSize) * sizeof(T));
    if (f_.changes_weights())
      add(panels_.along_re_back, panels_.along_im_back, kGrad, wants_turn, kOfU, !f_.through_y());
    if (f_.changes_inputs()) add(panels_.re_back, panels_.im_back, kGrad, false, kOfChange, false);
  }

  // The gradients of some inputs and their gates, from tile_.
  void into_inputs(int64_t x, int64_t rows, int64_t i, T* grad_x) {
    for (int64_t l = 0; l < min(kLanes<T>, in_.in - i); l += W) {
      const int count = int(min<int64_t>(W, in_.in - i - l));
      const Reg along_gate = S::load(along_gate_ + i + l);
      Reg sum = S::zero();
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t from = x + row * in_.in + i + l;
        const Reg value = S::load_first(in_.x + from, count), along = along_x(from, count);
        const Input at = input(value, along, i + l);
        const T* const tile = tile_ + row * kLanes<T> + l;
        const Reg of_u = S::load(tile + kOfU * kBlockSize);
        Reg of_x = of_u * at.slope_x, of_gate = of_u * at.slope_gate;
        if (f_.changes_inputs()) {
          const Reg of_change = S::load(tile + kOfChange * kBlockSize);
          const Reg mixed = S::with_sign_of(S::set1(T(1)) / (at.r * at.r), value);
          of_x = of_x + of_change * (along_gate * mixed - along * at.slope_x * at.slope_x);
          of_gate = of_gate + of_change * (along * mixed - along_gate * at.slope_gate * at.slope_gate);
        }
        if (negative_ && f_.grad_gate != nullptr) {
          typename S::Mask mask;
          S::store_negative(&mask, value);
          of_gate = S::add_masked(of_gate, mask, S::set1(T(kPi)) * S::load(tile + kOfTurn * kBlockSize));
        }
        sum = sum + of_gate;
        if (grad_x != nullptr) S::store_first(grad_x + row * in_.in + i + l, of_x, count);
      }
      T lanes[W];
      S::store(lanes, sum);
      for (int n = 0; n < count; ++n) gate_sums_[i + l + n] += double(lanes[n]);
    }
  }

  // dS/dW of some inputs, added to `sums`.
  void into_weights(int64_t i, int64_t rows, bool resume, T* sums) {
    if (!f_.through_y()) add_weights(kL, kAlong, i, rows, resume, sums);
    if (f_.changes_inputs()) add_weights(kDL, kGrad, i, rows, resume || !f_.through_y(), sums);
  }
  void add_weights(Panel part, Upstream which, int64_t i, int64_t rows, bool resume, T* sums) {
    const T* const panel = panel_ + part * kBlockSize;
    for (int64_t o = 0; o < in_.out; o += kFewColumns) {
      const auto multiply = [&](const auto& panels, const auto& factors, auto... products) {
        const auto add = [&](auto registers) {
          add_products<T, decltype(registers)::value, decltype(products)...>(
              panels, kLanes<T>, factors, stride_, 1, rows, resume, sums + o * layout_.inputs + i, layout_.matrix,
              layout_.inputs);
        };
        if (in_.in - i > W) add(std::integral_constant<int, 2>{});
        else add(std::integral_constant<int, 1>{});
      };
      multiply_conjugate<T>(panel, negative_ ? panel + kBlockSize : nullptr, upstream(which) + o, next_,
                            complex() || negative_, complex(), multiply);
    }
  }

  bool complex() const { return in_.weight_im != nullptr; }
  T* upstream(Upstream which) const { return upstream_ + 3 * which * next_; }

  const NpuSecond<T>& f_;
  const NpuInputs<T>& in_;
  const SecondPanels<T>& panels_;
  const SecondSums<T> layout_;
  const int64_t in_next_, stride_, next_;
  const Scratch<T> gate_, along_gate_, inputs_, upstream_, panel_, tile_;
  const Scratch<double> gate_sums_;
  bool negative_ = false;
};

}  // namespace

template <typename T>
void npu_second(const NpuSecond<T>& f, const Parallel& parallel) {
  using S = Simd<T>;
  const NpuInputs<T>& in = f.inputs;
  const SecondPanels<T> panels(f, parallel);
  const SecondSums<T> layout(in);
  const bool want_sums = f.grad_weight_re != nullptr || f.grad_weight_im != nullptr || f.grad_gate != nullptr;
  const RowGroups groups(in.rows, kBlockRows, (int64_t(1) << 20) / max<int64_t>(layout.size, 1));
  const Scratch<T> total(want_sums ? in.models * layout.size : 0);
  sum_rows(in.models, groups, layout.size, parallel, want_sums ? static_cast<T*>(total) : nullptr,
           [&] { return SecondGroup<T>(f, panels); });
  if (!want_sums) return;
  parallel.over(in.models * in.out, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const T* sums = total + task / in.out * layout.size + task % in.out * layout.inputs;
      for (T* grad : {f.grad_weight_re, f.grad_weight_im}) {
        for (int64_t i = 0; grad != nullptr && i < in.in; i += S::width)
          S::store_first(grad + task * in.in + i, S::load(sums + i), int(min<int64_t>(S::width, in.in - i)));
        sums += layout.matrix;
      }
    }
  });
  for (int64_t n = 0; f.grad_gate != nullptr && n < in.models * in.in; ++n) {
    const T sum = total[n / in.in * layout.size + layout.parts * layout.matrix + n % in.in];
    f.grad_gate[n] = f.gate_passes(in.gate[n]) ? sum : T(0);
  }
}

template void npu_second<float>(const NpuSecond<float>&, const Parallel&);
template void npu_second<double>(const NpuSecond<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
