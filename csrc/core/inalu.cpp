// iNALU (Schloer, Ring, Hotho 2020; Heim, Pevny, Smidl 2020, definition 1), forward and backward, without the [B, O, I]
// product of the eager form. A and W are tanh(weight) sigmoid(mask) of their pairs of parameters, L = log max(|x|,
// eps).
//
//   h = G x    a = A x    e = W L    g = 1 / (1 + exp(-h))
//   s_o = prod_i f_oi,  f_oi = 1 + m_i |W_oi|,  m = 0 for x > 0, -2 for x < 0, -1 for x = 0
//   y = g a + (1 - g) exp(min(e, omega)) s
//
// Saved: h, a, t = exp(min(e, omega)) times the factors that are not 0, and the flags of layers/inalu.h. Given
// grad_y:
//
//   dA = grad_y g    dH = grad_y g (1 - g) (a - t)    dT = grad_y (1 - g) t, t as 0 where a factor is 0
//   dE = dT where omega does not bound    d1 = grad_y (1 - g) t where one factor is 0
//   dx = dA A + dH G + (dE W) / x, the last where |x| >= eps
//   dA' x    dH' x    dW = dE' L + sign(W) sum over m of m (dT' [m] / (1 + m |W|), or d1' [m] where that factor is 0)
//
// The derivative by a factor is the product of the other factors: the product divided by this factor, or, where this
// factor alone is 0, their product d1. Whether a factor is 0 depends on W and m alone. So the division comes after the
// sum over rows, and every sum is a matrix product of one kernel, `add_product`.
#include "layers/inalu.h"
#include "api.h"
#include "nac_weights.h"
#include "panel.h"
#include "product.h"
#include "row_groups.h"
#include "simd/vector_math.h"

namespace npu {
namespace NPU_ISA {
namespace {

template <typename T>
NPU_INLINE typename Simd<T>::Reg log_size(typename Simd<T>::Reg x, T eps) {  // nan stays nan
  using S = Simd<T>;
  const typename S::Reg size = S::abs(x);
  return VectorMath<T>::log(S::select(size < S::set1(eps), S::set1(eps), size));
}

// m of the formulas above.
template <typename T>
NPU_INLINE typename Simd<T>::Reg sign_class(typename Simd<T>::Reg x) {
  using S = Simd<T>;
  return S::select(x < S::zero(), S::set1(T(-2)), S::select(x == S::zero(), S::set1(T(-1)), S::zero()));
}

// A and W of every model, and whether a factor of the sign product can be 0.
template <typename T>
struct Weights {
  using S = Simd<T>;
  Scratch<T> add, mul;  // [K, O, I]
  bool zero_factors = false;

  // known: the parts (layers/inalu.h); null: computed, and left in `keep` unless that is null.
  Weights(const InaluInputs<T>& in, const T* known, T* keep, const Parallel& parallel)
      : add(in.models * in.out * in.in), mul(in.models * in.out * in.in) {
    const int64_t count = in.models * in.out * in.in;
    const auto behind = [&](auto* parts) { return parts == nullptr ? parts : parts + 2 * count; };
    nac_weights<T>(in.weight_add, in.mask_add, count, known, keep, add, parallel);
    nac_weights<T>(in.weight_mul, in.mask_mul, count, behind(known), behind(keep), mul, parallel);
    for (int64_t n = 0; n < count && !zero_factors; n += S::width) {
      const auto size = S::abs(S::load_first(mul + n, int(min<int64_t>(S::width, count - n))));
      zero_factors = S::any_equal(size, S::set1(T(0.5))) || S::any_equal(size, S::set1(T(1)));
    }
  }
};

// The three matrices of every model as operands of add_product: sums over inputs (columns = outputs) or the reverse.
template <typename T>
struct PackedWeights {
  int64_t size;
  Scratch<T> add, mul, gate;
  Scratch<T> factor;  // 1 - 2 |W|, for sums over inputs only

  PackedWeights(const InaluInputs<T>& in, const Weights<T>& weights, bool over_inputs, const Parallel& parallel)
      : size(over_inputs ? round_up(in.out, kColumns) * in.in : round_up(in.in, kColumns) * in.out),
        add(in.models * size),
        mul(in.models * size),
        gate(in.models * size),
        factor(over_inputs ? in.models * size : 0) {
    const T* from[3] = {weights.add, weights.mul, in.gate_weight};
    T* to[3] = {add, mul, gate};
    parallel.over(3 * in.models, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const T* matrix = from[task % 3] + task / 3 * in.out * in.in;
        T* packed = to[task % 3] + task / 3 * size;
        if (over_inputs) pack<T>(matrix, in.out, in.in, in.in, 1, packed);
        else pack<T>(matrix, in.in, 1, in.out, in.in, packed);
        for (int64_t n = 0; n < size && over_inputs && task % 3 == 1; ++n)
          factor[task / 3 * size + n] = T(1) - T(2) * std::fabs(packed[n]);
      }
    });
  }
};

template <typename T>
class ForwardTile {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Tile = Reg[kRegisters][kColumns];
  static constexpr int W = S::width;
  static constexpr int64_t kRows = kLanes<T>;

 public:
  ForwardTile(const InaluForward<T>& f, const PackedWeights<T>& weights, bool zero_factors)
      : f_(f),
        in_(f.inputs),
        weights_(weights),
        zero_factors_(zero_factors),
        x_(in_.in * kRows),
        log_(in_.in * kRows),
        sign_(in_.in * kRows),
        negative_(in_.in * kRegisters),
        results_(kResults * in_.out * kRows),
        flags_(in_.out * kRows) {}

  void run(int64_t model, int64_t row) {
    const int64_t rows = min(kRows, in_.rows - row), first = (model * in_.rows + row) * in_.out;
    transpose<T>(in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in, in_.in, rows, kRegisters, x_);
    bool negative = false, zero = zero_factors_;
    for (int64_t n = 0; n < in_.in * kRows; n += W) {
      const Reg x = S::load(x_ + n);
      S::store(log_ + n, log_size<T>(x, in_.eps));
      S::store(sign_ + n, sign_class<T>(x));
      negative |= S::store_negative(negative_ + n / W, x);
      zero |= S::any_equal(x, S::zero());
    }
    const Signs signs = zero ? Signs::kZeros : (negative ? Signs::kNegative : Signs::kNone);
    for (int64_t o = 0; o < in_.out; o += kColumns) columns(model * weights_.size + o * in_.in, o, signs);
    T* into[kResults] = {f_.y, f_.h, f_.a, f_.t, flags_};
    for (int n = 0; n < (f_.h == nullptr ? 1 : kResults); ++n)
      transpose_back<T>(results_ + n * in_.out * kRows, in_.out, rows, kRegisters, into[n] + (n == 4 ? 0 : first));
    if (f_.h == nullptr) return;
    for (int64_t n = 0; n < rows * in_.out; ++n) f_.flags[first + n] = int32_t(flags_[n]);
  }

 private:
  static constexpr int kResults = 5;              // y, h, a, t, flags
  enum class Signs { kNone, kNegative, kZeros };  // what a tile's inputs, or the weights, need

  void columns(int64_t at, int64_t o, Signs signs) {
    Tile h = {}, a = {}, e = {}, s, zeros = {};
    add_product<T>(x_, kRows, weights_.gate + at, in_.in, h);
    add_product<T>(x_, kRows, weights_.add + at, in_.in, a);
    add_product<T>(log_, kRows, weights_.mul + at, in_.in, e);
    for (auto& row : s)
      for (Reg& product : row) product = S::set1(T(1));
    if (signs == Signs::kZeros) multiply_counting(weights_.mul + at, s, zeros);
    else if (signs == Signs::kNegative) multiply(weights_.factor + at, s);
    const Reg one = S::set1(T(1)), omega = S::set1(in_.omega);
    for (int n = 0; n < kColumns && o + n < in_.out; ++n) {
      for (int r = 0; r < kRegisters; ++r) {
        const typename S::Bits bounded = e[r][n] > omega;
        const Reg t = VectorMath<T>::exp(S::select(bounded, omega, e[r][n])) * s[r][n];
        const Reg none = S::select(zeros[r][n] == S::zero(), t, S::zero());
        const Shares<T> shares(h[r][n]);
        const Reg y = S::fma(shares.gate, a[r][n], shares.rest * none);
        const Reg two = S::select(zeros[r][n] > one, S::set1(T(2)), zeros[r][n]);
        const Reg flags = two + two + S::select(bounded, one, S::zero());
        const Reg all[kResults] = {y, h[r][n], a[r][n], t, flags};
        for (int k = 0; k < kResults; ++k) S::store(results_ + (k * in_.out + o + n) * kRows + r * W, all[k]);
      }
    }
  }

  // The product of the factors 1 - 2 |W| of the negative inputs.
  void multiply(const T* factors, Tile& s) const {
    Tile product;
    for (auto& row : product)
      for (Reg& p : row) p = S::set1(T(1));
    for (int64_t i = 0; i < in_.in; ++i, factors += kColumns)
      for (int n = 0; n < kColumns; ++n)
        for (int r = 0; r < kRegisters; ++r)
          product[r][n] = S::multiply_masked(product[r][n], negative_[i * kRegisters + r], S::set1(factors[n]));
    for (int r = 0; r < kRegisters; ++r)
      for (int n = 0; n < kColumns; ++n) s[r][n] = product[r][n];
  }

  // The product of the factors 1 + m |W| that are not 0, and the number of those that are.
  void multiply_counting(const T* packed, Tile& s, Tile& zeros) const {
    const Reg one = S::set1(T(1));
    Tile product, count = {};
    for (auto& row : product)
      for (Reg& p : row) p = one;
    for (int64_t i = 0; i < in_.in; ++i, packed += kColumns) {
      Reg sign[kRegisters];
      for (int r = 0; r < kRegisters; ++r) sign[r] = S::load(sign_ + i * kRows + r * W);
      for (int n = 0; n < kColumns; ++n) {
        const Reg size = S::abs(S::set1(packed[n]));
        for (int r = 0; r < kRegisters; ++r) {
          const Reg factor = S::fma(sign[r], size, one);
          const typename S::Bits zero = factor == S::zero();
          count[r][n] = count[r][n] + S::select(zero, one, S::zero());
          product[r][n] = product[r][n] * S::select(zero, one, factor);
        }
      }
    }
    for (int r = 0; r < kRegisters; ++r) {
      for (int n = 0; n < kColumns; ++n) {
        s[r][n] = product[r][n];
        zeros[r][n] = count[r][n];
      }
    }
  }

  const InaluForward<T>& f_;
  const InaluInputs<T>& in_;
  const PackedWeights<T>& weights_;
  bool zero_factors_;
  Scratch<T> x_, log_, sign_;
  Scratch<typename S::Mask> negative_;
  Scratch<T> results_, flags_;
};

// What the weights' gradients are made of, each [O, I]. The last three occur only where x or a factor can be 0.
enum Sum : int { kAdd, kGate, kExponent, kNegative, kZero, kNegativeRest, kZeroRest, kAllSums };

// One row group of one model.
template <typename T>
class BackwardGroup {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Tile = Reg[kRegisters][kColumns];
  static constexpr int W = S::width;

 public:
  BackwardGroup(const InaluBackward<T>& f, const PackedWeights<T>& weights, int sums)
      : f_(f),
        in_(f.inputs),
        weights_(weights),
        sums_(sums),
        out_(round_up(in_.out, W)),
        in_padded_(round_up(in_.in, kLanes<T>)),
        upstream_(kUpstream * kBlockRows * out_),
        packed_(round_up(in_.out, kColumns) * kBlockRows),
        transposed_(3 * kBlockRows * out_),
        transposed_x_(in_.in * kBlockRows),
        rows_(4 * kBlockRows * in_padded_) {}

  // sums: [sums][O, I], overwritten by those over rows [begin, end); null: not wanted.
  void run(int64_t model, int64_t begin, int64_t end, T* sums) {
    if (sums != nullptr) std::memset(sums, 0, size_t(sums_ * in_.out * in_.in) * sizeof(T));
    for (int64_t row = begin; row < end; row += kBlockRows) {
      const int64_t rows = min(kBlockRows, end - row);
      const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
      load_upstream((model * in_.rows + row) * in_.out, rows);
      if (f_.grad_x != nullptr) into_x(model, x, rows, f_.grad_x + (model * in_.rows + row) * in_.in);
      if (sums != nullptr) into_sums(x, rows, sums);
    }
  }

 private:
  enum Upstream : int { kDA, kDH, kDE, kDT, kD1, kUpstream };
  T* upstream(int which) const { return upstream_ + which * kBlockRows * out_; }

  void load_upstream(int64_t at, int64_t rows) {
    const Reg zero = S::zero(), one = S::set1(T(1));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t o = 0; o < in_.out; o += W) {
        const int count = int(min<int64_t>(W, in_.out - o));
        const int64_t from = at + row * in_.out + o, to = row * out_ + o;
        T bounds[W] = {}, zeros[W] = {};
        const auto read_flags = [&](int valid) __attribute__((always_inline)) {
          for (int l = 0; l < valid; ++l) {
            bounds[l] = T(f_.flags[from + l] & 1);
            zeros[l] = T(f_.flags[from + l] >> 1);
          }
        };
        if (count == W) read_flags(W);  // a known number: by registers
        else read_flags(count);
        const Reg grad = S::load_first(f_.grad_y + from, count), h = S::load_first(f_.h + from, count);
        const Reg a = S::load_first(f_.a + from, count), t = S::load_first(f_.t + from, count);
        const Reg number = S::load(zeros), whole = S::select(number == zero, t, zero);
        const Shares<T> shares(h);
        const Reg d_a = grad * shares.gate, d_m = grad * shares.rest, d_t = d_m * whole;
        S::store(upstream(kDA) + to, d_a);
        S::store(upstream(kDH) + to, d_a * shares.rest * (a - whole));
        S::store(upstream(kDE) + to, S::select(S::load(bounds) == zero, d_t, zero));
        S::store(upstream(kDT) + to, d_t);
        S::store(upstream(kD1) + to, S::select(number == one, d_m * t, zero));
      }
    }
  }

  void into_x(int64_t model, const T* x, int64_t rows, T* grad_x) {
    const int64_t registers = round_up(ceil_div(rows, W), kRegisters), lanes = registers * W;
    transpose<T>(x, in_.in, rows, registers, transposed_x_);
    T* transposed[3];
    for (int n = 0; n < 3; ++n) {
      transposed[n] = transposed_ + n * kBlockRows * out_;
      transpose<T>(upstream(n), out_, rows, registers, transposed[n]);
    }
    const Reg eps = S::set1(in_.eps);
    for (int64_t i = 0; i < in_.in; i += kColumns) {
      const int64_t at = model * weights_.size + i * in_.out;
      for (int64_t v = 0; v < lanes; v += kLanes<T>) {
        Tile d_x = {}, d_log = {};
        add_product<T>(transposed[kDA] + v, lanes, weights_.add + at, in_.out, d_x);
        add_product<T>(transposed[kDH] + v, lanes, weights_.gate + at, in_.out, d_x);
        add_product<T>(transposed[kDE] + v, lanes, weights_.mul + at, in_.out, d_log);
        for (int n = 0; n < kColumns && i + n < in_.in; ++n) {
          for (int r = 0; r < kRegisters; ++r) {
            T* to = transposed_x_ + (i + n) * lanes + v + r * W;  // x is read here for the last time
            const Reg value = S::load(to), inside = S::select(S::abs(value) >= eps, value, S::set1(T(1)));
            const Reg derivative = S::select(S::abs(value) >= eps, S::set1(T(1)) / inside, S::zero());
            S::store(to, S::fma(d_log[r][n], derivative, d_x[r][n]));
          }
        }
      }
    }
    transpose_back<T>(transposed_x_, in_.in, rows, registers, grad_x);
  }

  void into_sums(const T* x, int64_t rows, T* sums) {
    const int64_t size = kBlockRows * in_padded_;
    T *values = rows_, *logs = rows_ + size, *negative = rows_ + 2 * size, *zero = rows_ + 3 * size;
    bool any_negative = false, any_zero = false;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < in_padded_; i += W) {
        const int count = int(max<int64_t>(0, min<int64_t>(W, in_.in - i)));
        const int64_t to = row * in_padded_ + i;
        const Reg value = count > 0 ? S::load_first(x + row * in_.in + i, count) : S::zero();
        any_negative |= S::any_less(value, S::zero());
        if (count >= W) any_zero |= S::any_equal(value, S::zero());
        for (int l = 0; count < W && l < count; ++l) any_zero |= x[row * in_.in + i + l] == T(0);  // not the padding
        S::store(values + to, value);
        S::store(logs + to, log_size<T>(value, in_.eps));
        S::store(negative + to, S::select(value < S::zero(), S::set1(T(1)), S::zero()));
        S::store(zero + to, S::select(value == S::zero(), S::set1(T(1)), S::zero()));
      }
    }
    const struct {
      const T* panel;
      Upstream upstream;
      bool used;  // not a panel of zeros only
    } terms[kAllSums] = {{values, kDA, true},           {values, kDH, true},   {logs, kDE, true},
                         {negative, kDT, any_negative}, {zero, kDT, any_zero}, {negative, kD1, any_negative},
                         {zero, kD1, any_zero}};
    for (int n = 0; n < sums_; ++n) {
      if (!terms[n].used) continue;
      pack<T>(upstream(terms[n].upstream), in_.out, 1, rows, out_, packed_);
      add_sums<T>(terms[n].panel, in_padded_, in_.in, packed_, in_.out, rows, sums + n * in_.out * in_.in);
    }
  }

  const InaluBackward<T>& f_;
  const InaluInputs<T>& in_;
  const PackedWeights<T>& weights_;
  int sums_;
  int64_t out_, in_padded_;
  Scratch<T> upstream_, packed_, transposed_, transposed_x_, rows_;
};

// The parameters' gradients from the sums over all rows, for elements [n, n + count) of a model's [O, I].
template <typename T>
void finish(const InaluBackward<T>& f, const Weights<T>& weights, const T* parts, const T* sums, int count_sums,
            int64_t model, int64_t n, int count) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  const InaluInputs<T>& in = f.inputs;
  const int64_t size = in.out * in.in, at = model * size + n, all = in.models * size;
  const Reg zero = S::zero(), one = S::set1(T(1));
  Reg sum[kAllSums] = {};
  for (int k = 0; k < count_sums; ++k) sum[k] = S::load_first(sums + (model * count_sums + k) * size + n, count);
  nac_gradients<T>(sum[kAdd], parts, all, at, count, f.grad_weight_add, f.grad_mask_add);
  if (f.grad_gate_weight != nullptr) S::store_first(f.grad_gate_weight + at, sum[kGate], count);
  const Reg w = S::load_first(weights.mul + at, count), size_of_w = S::abs(w);
  const auto of_class = [&](T m, Reg whole, Reg rest) {
    const Reg factor = S::fma(S::set1(m), size_of_w, one);
    const typename S::Bits is_zero = factor == zero;
    return S::set1(m) * S::select(is_zero, rest, whole / S::select(is_zero, one, factor));
  };
  Reg d_size = of_class(T(-2), sum[kNegative], sum[kNegativeRest]);
  if (count_sums > kZero) d_size = d_size + of_class(T(-1), sum[kZero], sum[kZeroRest]);
  const Reg d_signs = S::select(w < zero, -d_size, S::select(w == zero, zero, d_size));
  nac_gradients<T>(sum[kExponent] + d_signs, parts + 2 * all, all, at, count, f.grad_weight_mul, f.grad_mask_mul);
}

}  // namespace

template <typename T>
void inalu_forward(const InaluForward<T>& f, const Parallel& parallel) {
  const InaluInputs<T>& in = f.inputs;
  const Weights<T> weights(in, nullptr, f.parts, parallel);
  const PackedWeights<T> packed(in, weights, true, parallel);
  const int64_t tiles = ceil_div(in.rows, kLanes<T>);
  parallel.over(in.models * tiles, [&](int64_t begin, int64_t end) {
    ForwardTile<T> tile(f, packed, weights.zero_factors);
    for (int64_t task = begin; task < end; ++task) tile.run(task / tiles, task % tiles * kLanes<T>);
  });
}

template <typename T>
void inalu_backward(const InaluBackward<T>& f, const Parallel& parallel) {
  using S = Simd<T>;
  const InaluInputs<T>& in = f.inputs;
  const int64_t size = in.out * in.in;
  const bool want_sums = f.grad_weight_add != nullptr || f.grad_mask_add != nullptr || f.grad_weight_mul != nullptr ||
                         f.grad_mask_mul != nullptr || f.grad_gate_weight != nullptr;
  const bool again = want_sums && f.parts == nullptr;
  const Scratch<T> computed(again ? 4 * in.models * size : 0);
  const T* parts = again ? computed : f.parts;
  const Weights<T> weights(in, f.parts, again ? static_cast<T*>(computed) : nullptr, parallel);
  const PackedWeights<T> packed(in, weights, false, parallel);
  bool zeros = weights.zero_factors;
  const int64_t values = (in.shared_x ? 1 : in.models) * in.rows * in.in;
  int64_t seen = 0;
  for (; seen + S::width <= values && !zeros; seen += S::width) zeros = S::any_equal(S::load(in.x + seen), S::zero());
  for (; seen < values && !zeros; ++seen) zeros = in.x[seen] == T(0);
  const int sums = zeros ? kAllSums : kNegative + 1;

  const RowGroups groups(in.rows, kBlockRows, (int64_t(1) << 22) / max<int64_t>(sums * size, 1));
  Scratch<T> total(want_sums ? in.models * sums * size : 0);
  sum_rows(in.models, groups, sums * size, parallel, want_sums ? static_cast<T*>(total) : nullptr,
           [&] { return BackwardGroup<T>(f, packed, sums); });
  if (!want_sums) return;
  const int64_t registers = ceil_div(size, S::width);
  parallel.over(in.models * registers, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t n = task % registers * S::width;
      const int count = int(min<int64_t>(S::width, size - n));
      finish<T>(f, weights, parts, total, sums, task / registers, n, count);
    }
  });
}

template void inalu_forward<float>(const InaluForward<float>&, const Parallel&);
template void inalu_forward<double>(const InaluForward<double>&, const Parallel&);
template void inalu_backward<float>(const InaluBackward<float>&, const Parallel&);
template void inalu_backward<double>(const InaluBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
