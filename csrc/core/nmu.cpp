// Neural Multiplication Unit (Madsen, Johansen 2020), forward and backward, without the [B, O, I] product of the eager
// form.
//
//   y_o = prod_i t_oi,   t_oi = w_oi x_i + (1 - w_oi)
//   e_oi = grad_y_o prod_{j != i} t_oj
//   dw_oi = sum_b e_oi (x_i - 1)              dx_i = sum_o e_oi w_oi
//
// The product without its i-th factor is a prefix times a suffix, so that it is right where t is 0.
// With `clip` w is min(max(weight, 0), 1), and dw is 0 where the weight is not in [0, 1].
//
// Neural Multiplicative Reciprocal Unit (Mistry, Farrahi, Hare 2022): the same of x' = [x, r], r = 1 / (x + eps), which
// is made in the panels and never stored: dx_i = dx'_i - r_i^2 dx'_{I + i}. With separate signs
//
//   m_o = prod_i (w_oi |x'_i| + 1 - w_oi)     q_o = sum_i n_i weight_oi, n_i = 1 where x'_i < 0, else 0
//   y_o = m_o cos(pi q_o)                     dweight_oi += sum_b -grad_y_o pi m_o sin(pi q_o) n_i
//
// and the derivative of |x'| is sign(x'), 0 at 0.
//
// Rows are transposed into panels as in npu/forward.cpp; the backward keeps the prefixes of a few outputs for one
// register of rows in the first-level cache.
#include "layers/nmu.h"
#include "api.h"
#include "panel.h"
#include "row_groups.h"
#include "simd/vector_math.h"

namespace npu {
namespace NPU_ISA {
namespace {

constexpr int kTileRows = 3;
#if defined(__AVX512F__)
constexpr int kTileOutputs = 4;
#else
constexpr int kTileOutputs = 2;
#endif

template <bool Separate>
constexpr int kPacked = Separate ? 3 : 2;  // w, 1 - w; and the weight as it is, for the signs

// [O / kTileOutputs][factors][outputs of the tile][kPacked]
template <typename T, bool Separate>
void pack(const NmuInputs<T>& in, int64_t model, T* packed) {
  const int64_t factors = in.factors();
  const T* weight = in.weight + model * in.out * factors;
  for (int64_t o0 = 0; o0 < in.out; o0 += kTileOutputs) {
    const int outputs = int(min<int64_t>(kTileOutputs, in.out - o0));
    for (int64_t i = 0; i < factors; ++i) {
      for (int n = 0; n < outputs; ++n) {
        const T given = weight[(o0 + n) * factors + i], w = in.clip ? clamp_gate(given) : given;
        *packed++ = w;
        *packed++ = T(1) - w;
        if (Separate) *packed++ = given;
      }
    }
  }
}

// The factors' inputs of `rows` rows, [factors][registers].
template <typename T>
void transpose_inputs(const NmuInputs<T>& in, int64_t model, int64_t row, int64_t rows, int64_t registers, T* panel) {
  using S = Simd<T>;
  transpose<T>(in.x + ((in.shared_x ? 0 : model * in.rows) + row) * in.in, in.in, rows, registers, panel);
  if (!in.reciprocal) return;
  const int64_t lanes = registers * S::width;
  for (int64_t i = 0; i < in.in; ++i)  // behind the last row 1, whose reciprocal is finite
    for (int64_t lane = rows; lane < lanes; ++lane) panel[i * lanes + lane] = T(1);
  const typename S::Reg one = S::set1(T(1)), eps = S::set1(in.eps == 0 ? T(-0.0) : in.eps);  // x + -0.0 is x
  for (int64_t n = 0; n < in.in * lanes; n += S::width)
    S::store(panel + in.in * lanes + n, one / (S::load(panel + n) + eps));
}

// 1 where x is negative, else 0.
template <typename T>
NPU_INLINE typename Simd<T>::Reg negative(typename Simd<T>::Reg x) {
  using S = Simd<T>;
  return S::select(x < S::zero(), S::set1(T(1)), S::zero());
}

// q without whole periods of cos(pi q), which is exact: a long sum of q keeps the error of a short one.
template <typename T>
NPU_INLINE typename Simd<T>::Reg within_period(typename Simd<T>::Reg q) {
  using S = Simd<T>;
  const auto magic = S::set1(sizeof(T) == 4 ? T(12582912.0) : T(6755399441055744.0));  // adding 1.5 * 2^p rounds
  const auto periods = (S::set1(T(0.5)) * q + magic) - magic;
  return S::fma(S::set1(T(-2)), periods, q);
}

// Whether it is time for `within_period` after factor i.
constexpr bool ends_run(int64_t i) { return i % 8 == 7; }

template <typename T, int R, int N, bool Separate>
void multiply_tile(const T* x, int64_t factors, const T* w, typename Simd<T>::Reg (*y)[N]) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int P = kPacked<Separate>;
  Reg product[R][N], turns[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) product[r][n] = S::set1(T(1)), turns[r][n] = S::zero();
  for (int64_t i = 0; i < factors; ++i, x += R * S::width, w += P * N) {
    Reg value[R], minus[R];
    for (int r = 0; r < R; ++r) {
      value[r] = S::load(x + r * S::width);
      if constexpr (Separate) minus[r] = negative<T>(value[r]), value[r] = S::abs(value[r]);
    }
    for (int n = 0; n < N; ++n) {
      const Reg weight = S::set1(w[P * n]), rest = S::set1(w[P * n + 1]);
      for (int r = 0; r < R; ++r) {
        product[r][n] = product[r][n] * S::fma(weight, value[r], rest);
        if constexpr (Separate) turns[r][n] = S::fma(minus[r], S::set1(w[P * n + 2]), turns[r][n]);
      }
    }
    if (!Separate || !ends_run(i)) continue;
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) turns[r][n] = within_period<T>(turns[r][n]);
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      y[r][n] = product[r][n];
      if constexpr (!Separate) continue;
      Reg sine, cosine;
      VectorMath<T>::sincos(S::set1(T(kPi)) * turns[r][n], &sine, &cosine);
      y[r][n] = y[r][n] * cosine;
    }
  }
}

template <typename T, int R, int N, bool Separate>
void forward_tile(const NmuForward<T>& f, int64_t first, int64_t rows, int64_t o, const T* x, const T* packed) {
  using S = Simd<T>;
  const NmuInputs<T>& in = f.inputs;
  typename S::Reg y[R][N];
  multiply_tile<T, R, N, Separate>(x, in.factors(), packed + kPacked<Separate> * o * in.factors(), y);
  for (int r = 0; r < R; ++r) {
    const int valid = int(min<int64_t>(S::width, rows - r * S::width));
    if (valid > 0) store_columns<T>(f.y + (first + r * S::width) * in.out + o, in.out, valid, N, y[r]);
  }
}

template <typename T, int R, bool Separate>
void forward_rows(const NmuForward<T>& f, int64_t model, int64_t row, const T* packed, T* panel) {
  const NmuInputs<T>& in = f.inputs;
  const int64_t rows = min<int64_t>(R * Simd<T>::width, in.rows - row);
  transpose_inputs<T>(in, model, row, rows, R, panel);
  const int64_t first = model * in.rows + row;
  int64_t o = 0;
  for (; o + kTileOutputs <= in.out; o += kTileOutputs)
    forward_tile<T, R, kTileOutputs, Separate>(f, first, rows, o, panel, packed);
  with_constant<1, kTileOutputs - 1>(
      in.out - o, [&](auto n) { forward_tile<T, R, decltype(n)::value, Separate>(f, first, rows, o, panel, packed); });
}

// One row group of one model.
template <typename T, bool Separate>
class BackwardGroup {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width, P = kPacked<Separate>;

 public:
  explicit BackwardGroup(const NmuBackward<T>& f)
      : f_(f),
        in_(f.inputs),
        factors_(in_.factors()),
        packed_(P * factors_ * in_.out),
        x_(factors_ * kRegisters * W),
        grad_x_(factors_ * kRegisters * W),
        grad_y_(in_.out * kRegisters * W),
        prefix_(factors_ * kTileOutputs * W),
        lanes_(factors_ * kTileOutputs * W * kSums) {}

  // grad_weight: [O, factors], overwritten by the sums over rows [begin, end).
  void run(int64_t model, int64_t begin, int64_t end, T* grad_weight) {
    pack<T, Separate>(in_, model, packed_);
    weight_ = in_.weight + model * in_.out * factors_;
    if (grad_weight != nullptr) std::memset(grad_weight, 0, size_t(in_.out * factors_) * sizeof(T));
    for (int64_t row = begin; row < end; row += kRegisters * W) {
      const int64_t rows = min<int64_t>(kRegisters * W, end - row), registers = ceil_div(rows, W);
      transpose_inputs<T>(in_, model, row, rows, registers, x_);
      transpose<T>(f_.grad_y + (model * in_.rows + row) * in_.out, in_.out, rows, registers, grad_y_);
      std::memset(grad_x_, 0, size_t(factors_ * registers * W) * sizeof(T));
      int64_t o = 0;
      for (; o + kTileOutputs <= in_.out; o += kTileOutputs) outputs<kTileOutputs>(o, registers, grad_weight);
      for (; o < in_.out; ++o) outputs<1>(o, registers, grad_weight);
      if (f_.grad_x == nullptr) continue;
      if (in_.reciprocal) through_reciprocals(registers);
      transpose_back<T>(grad_x_, in_.in, rows, registers, f_.grad_x + (model * in_.rows + row) * in_.in);
    }
  }

 private:
  static constexpr int64_t kRegisters = 4;
  static constexpr int kSums = Separate ? 2 : 1;  // of a weight: by the sizes, by the signs

  template <int N>
  void outputs(int64_t o, int64_t registers, T* grad_weight) {
    const T* weights = packed_ + P * o * factors_;
    const int64_t step = N == 1 ? tile_width(o) : N;  // outputs of the packed tile that o lies in
    if (N == 1) weights = packed_ + P * (o / kTileOutputs * kTileOutputs) * factors_ + P * (o % kTileOutputs);
    std::memset(lanes_, 0, size_t(factors_ * N * W * kSums) * sizeof(T));
    for (int64_t v = 0; v < registers; ++v) {
      Reg product[N], suffix[N], turns[N];
      for (int n = 0; n < N; ++n) {
        product[n] = S::set1(T(1)), turns[n] = S::zero();
        suffix[n] = S::load(grad_y_ + ((o + n) * registers + v) * W);
      }
      for (int64_t i = 0; i < factors_; ++i) {
        Reg x = S::load(x_ + (i * registers + v) * W), minus;
        if constexpr (Separate) minus = negative<T>(x), x = S::abs(x);
        const T* w = weights + P * i * step;
        for (int n = 0; n < N; ++n) {
          S::store(prefix_ + (i * N + n) * W, product[n]);
          product[n] = product[n] * S::fma(S::set1(w[P * n]), x, S::set1(w[P * n + 1]));
          if constexpr (Separate) {
            turns[n] = S::fma(minus, S::set1(w[P * n + 2]), turns[n]);
            if (ends_run(i)) turns[n] = within_period<T>(turns[n]);
          }
        }
      }
      if constexpr (Separate) {
        for (int n = 0; n < N; ++n) {  // from here on `turns` is the gradient of q
          Reg sine, cosine;
          VectorMath<T>::sincos(S::set1(T(kPi)) * turns[n], &sine, &cosine);
          turns[n] = S::set1(T(-kPi)) * (suffix[n] * product[n]) * sine;
          suffix[n] = suffix[n] * cosine;
        }
      }
      for (int64_t i = factors_ - 1; i >= 0; --i) {
        Reg x = S::load(x_ + (i * registers + v) * W), minus;
        if constexpr (Separate) minus = negative<T>(x), x = S::abs(x);
        const Reg x_less_one = x - S::set1(T(1));
        T* grad_x = grad_x_ + (i * registers + v) * W;
        Reg dx = S::load(grad_x);
        const T* w = weights + P * i * step;
        for (int n = 0; n < N; ++n) {
          T* lane = lanes_ + (i * N + n) * W;
          const Reg weight = S::set1(w[P * n]);
          const Reg others = suffix[n] * S::load(prefix_ + (i * N + n) * W);
          S::store(lane, S::fma(others, x_less_one, S::load(lane)));
          dx = S::fma(others, weight, dx);
          suffix[n] = suffix[n] * S::fma(weight, x, S::set1(w[P * n + 1]));
          if constexpr (Separate) {
            T* sign = lane + factors_ * N * W;
            S::store(sign, S::fma(minus, turns[n], S::load(sign)));
          }
        }
        S::store(grad_x, dx);
      }
    }
    if (grad_weight == nullptr) return;
    for (int n = 0; n < N; ++n) {
      for (int64_t i = 0; i < factors_; i += W) {
        const int count = int(min<int64_t>(W, factors_ - i));
        T* at = grad_weight + (o + n) * factors_ + i;
        Reg sum = sum_lanes<N>(lanes_, i, n, count);
        if (in_.clip) {
          const Reg weight = S::load_first(weight_ + (o + n) * factors_ + i, count);
          sum = S::select((weight >= S::zero()) & (weight <= S::set1(T(1))), sum, S::zero());
        }
        if constexpr (Separate) sum = sum + sum_lanes<N>(lanes_ + factors_ * N * W, i, n, count);
        S::store_first(at, S::load_first(at, count) + sum, count);
      }
    }
  }

  template <int N>
  Reg sum_lanes(const T* lanes, int64_t i, int n, int count) const {
    Reg lane[W];
    for (int c = 0; c < W; ++c) lane[c] = c < count ? S::load(lanes + ((i + c) * N + n) * W) : S::zero();
    return S::sum_each(lane);
  }

  // From the gradient of x' to that of x.
  void through_reciprocals(int64_t registers) {
    const int64_t half = in_.in * registers * W;
    for (int64_t n = 0; n < half; n += W) {
      const Reg r = S::load(x_ + half + n);
      Reg dx = S::load(grad_x_ + n), dr = S::load(grad_x_ + half + n);
      if constexpr (Separate) dx = dx * sign(S::load(x_ + n)), dr = dr * sign(r);
      S::store(grad_x_ + n, dx - dr * (r * r));
    }
  }
  static Reg sign(Reg x) {
    const Reg one = S::set1(T(1)), zero = S::zero();
    return S::select(x > zero, one, zero) - S::select(x < zero, one, zero);
  }

  int64_t tile_width(int64_t o) const { return min<int64_t>(kTileOutputs, in_.out - o / kTileOutputs * kTileOutputs); }

  const NmuBackward<T>& f_;
  const NmuInputs<T>& in_;
  const int64_t factors_;
  const T* weight_ = nullptr;
  Scratch<T> packed_, x_, grad_x_, grad_y_, prefix_, lanes_;
};

template <typename T, bool Separate>
void multiply(const NmuForward<T>& f, const Parallel& parallel) {
  constexpr int64_t kRows = kTileRows * Simd<T>::width;
  const NmuInputs<T>& in = f.inputs;
  const int64_t tiles = ceil_div(in.rows, kRows);
  parallel.over(in.models * tiles, [&](int64_t begin, int64_t end) {
    Scratch<T> packed(kPacked<Separate> * in.factors() * in.out), panel(in.factors() * kRows);
    int64_t packed_model = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / tiles, row = task % tiles * kRows;
      if (model != packed_model) pack<T, Separate>(in, model, packed);
      packed_model = model;
      const int64_t registers = ceil_div(min(kRows, in.rows - row), Simd<T>::width);
      if (registers == 1) forward_rows<T, 1, Separate>(f, model, row, packed, panel);
      else if (registers == 2) forward_rows<T, 2, Separate>(f, model, row, packed, panel);
      else forward_rows<T, kTileRows, Separate>(f, model, row, packed, panel);
    }
  });
}

}  // namespace

template <typename T>
void nmu_forward(const NmuForward<T>& f, const Parallel& parallel) {
  (f.inputs.separate ? multiply<T, true> : multiply<T, false>)(f, parallel);
}

template <typename T>
void nmu_backward(const NmuBackward<T>& f, const Parallel& parallel) {
  const int64_t size = f.inputs.out * f.inputs.factors();
  const RowGroups groups(f.inputs.rows, Simd<T>::width, (int64_t(1) << 21) / max<int64_t>(size, 1));
  if (f.inputs.separate)
    sum_rows(f.inputs.models, groups, size, parallel, f.grad_weight, [&] { return BackwardGroup<T, true>(f); });
  else sum_rows(f.inputs.models, groups, size, parallel, f.grad_weight, [&] { return BackwardGroup<T, false>(f); });
}

template void nmu_forward<float>(const NmuForward<float>&, const Parallel&);
template void nmu_forward<double>(const NmuForward<double>&, const Parallel&);
template void nmu_backward<float>(const NmuBackward<float>&, const Parallel&);
template void nmu_backward<double>(const NmuBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
