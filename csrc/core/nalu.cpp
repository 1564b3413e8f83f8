// Neural Arithmetic Logic Unit (Trask et al. 2018; Heim, Pevny, Smidl 2020, definition 1), forward and backward. W is
// tanh(weight) sigmoid(mask), L = log(|x| + eps).
//
//   h = G x + bias    a = W x    t = exp(W L)    g = 1 / (1 + exp(-h))
//   y = g a + (1 - g) t
//
// Saved: h, a, t. Given grad_y:
//
//   dA = grad_y g    dE = grad_y (1 - g) t    dH = grad_y g (1 - g) (a - t)
//   dx = dA W + dH G + (dE W) sign(x) / (|x| + eps)
//   dW = dA' x + dE' L    dG = dH' x    dbias = sum over rows of dH
//
// The three products of a line are made at once, by add_products: a register holds outputs, or inputs, of one row, so
// that nothing but weights is transposed. Rows go in blocks, and a block is finished for some outputs, or inputs, after
// the others.
#include "layers/nalu.h"
#include "api.h"
#include "nac_weights.h"
#include "panel.h"
#include "product.h"
#include "row_groups.h"
#include "simd/vector_math.h"

namespace npu {
namespace NPU_ISA {
namespace {

// W and G of every model as panels of add_products.
template <typename T>
struct Panels {
  int64_t size;
  Scratch<T> nac, gate;

  // known: the parts (layers/nalu.h); null: computed, and left in `keep` unless that is null.
  Panels(const NaluInputs<T>& in, const T* known, T* keep, bool over_outputs, const Parallel& parallel)
      : size(panel_size<T>(in.in, in.out, over_outputs)), nac(in.models * size), gate(in.models * size) {
    const int64_t count = in.out * in.in;
    const Scratch<T> product(in.models * count);
    nac_weights<T>(in.weight, in.mask, in.models * count, known, keep, product, parallel);
    parallel.over(2 * in.models, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const T* from = (task % 2 ? in.gate_weight : static_cast<const T*>(product)) + task / 2 * count;
        T* to = (task % 2 ? gate : nac) + task / 2 * size;
        pack_panel<T>(from, in.in, in.out, over_outputs, to);
      }
    });
  }
};

template <typename T>
NPU_INLINE typename Simd<T>::Reg log_size(typename Simd<T>::Reg x, T eps) {
  using S = Simd<T>;
  return VectorMath<T>::log(S::abs(x) + S::set1(eps));
}

template <typename T>
class ForwardBlock {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  enum Sum : int { kA, kH, kE, kSums };

 public:
  ForwardBlock(const NaluForward<T>& f, const Panels<T>& weights)
      : f_(f),
        in_(f.inputs),
        weights_(weights),
        size_(round_up(in_.in * kBlockRows, W)),
        x_(size_),
        log_(size_),
        sums_(kSums * kBlockRows * kLanes<T>) {
    std::memset(x_, 0, size_t(size_) * sizeof(T));  // rows behind the last one are read too
    std::memset(log_, 0, size_t(size_) * sizeof(T));
  }

  void run(int64_t model, int64_t row) {
    const int64_t rows = min(kBlockRows, in_.rows - row), values = rows * in_.in;
    const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
    for (int64_t n = 0; n < values; n += W) {
      const Reg value = S::load_first(x + n, int(min<int64_t>(W, values - n)));
      S::store(x_ + n, value);
      S::store(log_ + n, log_size<T>(value, in_.eps));
    }
    const T* const factors[] = {x_, log_};
    for (int64_t o = 0; o < in_.out; o += kLanes<T>) {
      const T* const panels[] = {weights_.nac + model * weights_.size + o * in_.in,
                                 weights_.gate + model * weights_.size + o * in_.in};
      const int64_t outputs = min(kLanes<T>, in_.out - o);
      multiply_rows<T, Product<0, 0, kA>, Product<1, 0, kH>, Product<0, 1, kE>>(panels, factors, in_.in, in_.in, rows,
                                                                                outputs, sums_);
      if (in_.gate_bias != nullptr) add_bias(in_.gate_bias + model * in_.out + o, rows, outputs);
      finish(rows, outputs, (model * in_.rows + row) * in_.out + o);
    }
  }

 private:
  T* sum(Sum which, int64_t row) const { return sums_ + (which * kBlockRows + row) * kLanes<T>; }

  void add_bias(const T* bias, int64_t rows, int64_t outputs) {
    for (int64_t l = 0; l < outputs; l += W) {
      const Reg more = S::load_first(bias + l, int(min<int64_t>(W, outputs - l)));
      for (int64_t row = 0; row < rows; ++row) S::store(sum(kH, row) + l, S::load(sum(kH, row) + l) + more);
    }
  }

  // The results of some outputs. Few outputs of all rows are moved together, so that they fill registers.
  void finish(int64_t rows, int64_t outputs, int64_t at) {
    int64_t next = in_.out;
    if (in_.out < W) {
      for (int which = 0; which < kSums; ++which)
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t l = 0; l < outputs; ++l) sum(Sum(which), 0)[row * outputs + l] = sum(Sum(which), row)[l];
      outputs *= rows, rows = 1;
    }
    for (int64_t row = 0; row < rows; ++row, at += next) {
      for (int64_t l = 0; l < outputs; l += W) {
        const int count = int(min<int64_t>(W, outputs - l));
        const Reg a = S::load(sum(kA, row) + l), h = S::load(sum(kH, row) + l);
        const Reg t = VectorMath<T>::exp(S::load(sum(kE, row) + l));
        const Shares<T> shares(h);
        S::store_first(f_.y + at + l, S::fma(shares.gate, a, shares.rest * t), count);
        if (f_.h == nullptr) continue;
        S::store_first(f_.h + at + l, h, count);
        S::store_first(f_.a + at + l, a, count);
        S::store_first(f_.t + at + l, t, count);
      }
    }
  }

  const NaluForward<T>& f_;
  const NaluInputs<T>& in_;
  const Panels<T>& weights_;
  int64_t size_;
  Scratch<T> x_, log_, sums_;
};

// The sums over rows of one model: of W and of G [outputs][inputs], both padded, and of the bias [outputs].
template <typename T>
struct SumsLayout {
  int64_t inputs, matrix, size;
  explicit SumsLayout(const NaluInputs<T>& in)
      : inputs(round_up(in.in, Simd<T>::width)),
        matrix(round_up(in.out, kFewColumns) * inputs),
        size(2 * matrix + in.out) {}
};

// One row group of one model.
template <typename T>
class BackwardGroup {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  enum Upstream : int { kDA, kDH, kDE, kUpstream };
  // Sums of which the bias's gradient is made: equal rows round alike, so that errors grow with a sum's length.
  static constexpr int kParts = 8;

 public:
  BackwardGroup(const NaluBackward<T>& f, const Panels<T>& weights)
      : f_(f),
        in_(f.inputs),
        weights_(weights),
        layout_(in_),
        // Few outputs lie beside each other, as in memory. Rows of others are an odd number of registers apart: with a
        // power of 2, the rows of a sum would share few lines of the first-level cache.
        stride_(in_.out < W ? in_.out : (ceil_div(in_.out, W) | 1) * W),
        next_(round_up(stride_ * kBlockRows, W) + W),
        upstream_(kUpstream * next_),
        rows_(2 * kBlockRows * kLanes<T>),
        spread_(2 * kBlockRows * kLanes<T>),
        bias_(kParts * in_.out) {
    std::memset(upstream_, 0, size_t(kUpstream * next_) * sizeof(T));  // what is not written is read too
  }

  // sums: SumsLayout, overwritten by those over rows [begin, end); null: not wanted.
  void run(int64_t model, int64_t begin, int64_t end, T* sums) {
    if (sums != nullptr && begin == end) std::memset(sums, 0, size_t(layout_.size) * sizeof(T));
    const bool want_bias = sums != nullptr && f_.grad_gate_bias != nullptr;
    if (want_bias) std::memset(bias_, 0, size_t(kParts * in_.out) * sizeof(double));
    for (int64_t row = begin; row < end; row += kBlockRows) {
      const int64_t rows = min(kBlockRows, end - row);
      const int64_t x = ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
      T* const grad_x = f_.grad_x == nullptr ? nullptr : f_.grad_x + (model * in_.rows + row) * in_.in;
      load_upstream((model * in_.rows + row) * in_.out, rows);
      for (int64_t i = 0; i < in_.in; i += kLanes<T>) {
        load_inputs(in_.x + x, grad_x, rows, i);
        if (grad_x != nullptr) into_x(model, i, rows, grad_x + i);
        if (sums != nullptr) into_sums(i, rows, row > begin, sums);
      }
      if (want_bias) into_bias(rows);
    }
    if (want_bias) finish_bias(sums + 2 * layout_.matrix);
  }

 private:
  // dA, dH and dE as [rows][stride_].
  void load_upstream(int64_t at, int64_t rows) {
    const bool dense = stride_ == in_.out;
    const int64_t lines = dense ? 1 : rows, outputs = dense ? rows * in_.out : in_.out;
    for (int64_t line = 0; line < lines; ++line, at += in_.out) {
      for (int64_t o = 0; o < outputs; o += W) {
        const int count = int(min<int64_t>(W, outputs - o));
        const Reg grad = S::load_first(f_.grad_y + at + o, count), h = S::load_first(f_.h + at + o, count);
        const Reg a = S::load_first(f_.a + at + o, count), t = S::load_first(f_.t + at + o, count);
        const Shares<T> shares(h);
        const Reg d_a = grad * shares.gate;
        T* const to = upstream_ + line * stride_ + o;
        S::store(to + kDA * next_, d_a);
        S::store(to + kDH * next_, d_a * shares.rest * (a - t));
        S::store(to + kDE * next_, grad * shares.rest * t);
      }
    }
  }

  // x and L of up to kLanes inputs, the i-th and following, [rows][kLanes]; x and grad_x are those of the block.
  void load_inputs(const T* x, const T* grad_x, int64_t rows, int64_t i) {
    T* const logs = rows_ + kBlockRows * kLanes<T>;
    NextRows<T, 2> next_x(x, rows, in_.in, i);
    NextRows<T, 2, true> next_grad(grad_x, rows, in_.in, i);
    for (int64_t row = 0; row < rows; ++row, x += in_.in) {
      for (int64_t l = 0; l < min(kLanes<T>, in_.in - i); l += W) {
        next_x.fetch();
        next_grad.fetch();
        const Reg value = S::load_first(x + i + l, int(min<int64_t>(W, in_.in - i - l)));
        S::store(rows_ + row * kLanes<T> + l, value);
        S::store(logs + row * kLanes<T> + l, log_size<T>(value, in_.eps));
      }
    }
  }

  void into_x(int64_t model, int64_t i, int64_t rows, T* grad_x) {
    const int64_t at = model * weights_.size + i * in_.out, inputs = min(kLanes<T>, in_.in - i);
    const T* const panels[] = {weights_.nac + at, weights_.gate + at};
    const T* const factors[] = {upstream_ + kDA * next_, upstream_ + kDH * next_, upstream_ + kDE * next_};
    multiply_rows<T, Product<0, 0, 0>, Product<1, 1, 0>, Product<0, 2, 1>>(panels, factors, stride_, in_.out, rows,
                                                                           inputs, spread_);
    const Reg eps = S::set1(in_.eps), one = S::set1(T(1));
    for (int64_t row = 0; row < rows; ++row, grad_x += in_.in) {
      for (int64_t l = 0; l < inputs; l += W) {
        const T* const sum = spread_ + row * kLanes<T> + l;
        const Reg x = S::load(rows_ + row * kLanes<T> + l), derivative = S::with_sign_of(one / (S::abs(x) + eps), x);
        S::store_first(grad_x + l, S::fma(S::load(sum + kBlockRows * kLanes<T>), derivative, S::load(sum)),
                       int(min<int64_t>(W, inputs - l)));
      }
    }
  }

  void into_sums(int64_t i, int64_t rows, bool resume, T* sums) {
    const T* const panels[] = {rows_, rows_ + kBlockRows * kLanes<T>};
    for (int64_t o = 0; o < in_.out; o += kFewColumns) {
      const T* const d = upstream_ + o;
      const T* const factors[] = {d + kDA * next_, d + kDH * next_, d + kDE * next_};
      T* const to = sums + o * layout_.inputs + i;
      const auto add = [&](auto registers) {
        add_products<T, decltype(registers)::value, Product<0, 0, 0>, Product<0, 1, 1>, Product<1, 2, 0>>(
            panels, kLanes<T>, factors, stride_, 1, rows, resume, to, layout_.matrix, layout_.inputs);
      };
      if (in_.in - i > W) add(std::integral_constant<int, 2>{});
      else add(std::integral_constant<int, 1>{});
    }
  }

  void into_bias(int64_t rows) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t o = 0; o < in_.out; ++o)
        bias_[row % kParts * in_.out + o] += double(upstream_[kDH * next_ + row * stride_ + o]);
  }

  void finish_bias(T* sums) {
    for (int half = kParts / 2; half > 0; half /= 2)
      for (int64_t n = 0; n < half * in_.out; ++n) bias_[n] += bias_[half * in_.out + n];
    for (int64_t o = 0; o < in_.out; ++o) sums[o] = T(bias_[o]);
  }

  const NaluBackward<T>& f_;
  const NaluInputs<T>& in_;
  const Panels<T>& weights_;
  const SumsLayout<T> layout_;
  int64_t stride_, next_;
  Scratch<T> upstream_, rows_, spread_;
  Scratch<double> bias_;
};

}  // namespace

template <typename T>
void nalu_forward(const NaluForward<T>& f, const Parallel& parallel) {
  const NaluInputs<T>& in = f.inputs;
  const Panels<T> weights(in, nullptr, f.parts, false, parallel);
  const int64_t blocks = ceil_div(in.rows, kBlockRows);
  parallel.over(in.models * blocks, [&](int64_t begin, int64_t end) {
    ForwardBlock<T> block(f, weights);
    for (int64_t task = begin; task < end; ++task) block.run(task / blocks, task % blocks * kBlockRows);
  });
}

template <typename T>
void nalu_backward(const NaluBackward<T>& f, const Parallel& parallel) {
  using S = Simd<T>;
  const NaluInputs<T>& in = f.inputs;
  const int64_t count = in.out * in.in, all = in.models * count;
  const bool want_weight = f.grad_weight != nullptr || f.grad_mask != nullptr;
  const bool want_sums = want_weight || f.grad_gate_weight != nullptr || f.grad_gate_bias != nullptr;
  const bool again = want_weight && f.parts == nullptr;
  const Scratch<T> computed(again ? 2 * all : 0);
  const T* parts = again ? computed : f.parts;
  const Panels<T> weights(in, f.parts, again ? static_cast<T*>(computed) : nullptr, true, parallel);
  const SumsLayout<T> layout(in);
  const RowGroups groups(in.rows, kBlockRows, (int64_t(1) << 20) / max<int64_t>(layout.size, 1));
  const Scratch<T> total(want_sums ? in.models * layout.size : 0);
  sum_rows(in.models, groups, layout.size, parallel, want_sums ? static_cast<T*>(total) : nullptr,
           [&] { return BackwardGroup<T>(f, weights); });
  if (!want_sums) return;
  parallel.over(in.models * in.out, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const T* sums = total + task / in.out * layout.size;
      const int64_t o = task % in.out;
      if (f.grad_gate_bias != nullptr) f.grad_gate_bias[task] = sums[2 * layout.matrix + o];
      for (int64_t i = 0; i < in.in; i += S::width) {
        const int lanes = int(min<int64_t>(S::width, in.in - i));
        const int64_t at = task * in.in + i;
        const T* sum = sums + o * layout.inputs + i;
        if (want_weight) nac_gradients<T>(S::load(sum), parts, all, at, lanes, f.grad_weight, f.grad_mask);
        if (f.grad_gate_weight != nullptr) S::store_first(f.grad_gate_weight + at, S::load(sum + layout.matrix), lanes);
      }
    }
  });
}

template void nalu_forward<float>(const NaluForward<float>&, const Parallel&);
template void nalu_forward<double>(const NaluForward<double>&, const Parallel&);
template void nalu_backward<float>(const NaluBackward<float>&, const Parallel&);
template void nalu_backward<double>(const NaluBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
