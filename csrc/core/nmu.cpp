// Neural Multiplication Unit (Madsen, Johansen 2020), forward and backward, without the [B, O, I] product of the eager
// form.
//
//   y_o = prod_i t_oi,   t_oi = w_oi x_i + (1 - w_oi)
//   e_oi = grad_y_o prod_{j != i} t_oj        the product without its i-th factor, as prefix times suffix: right at t =
//   0 dw_oi = sum_b e_oi (x_i - 1)              dx_i = sum_o e_oi w_oi
//
// With `clip` w is min(max(weight, 0), 1), and dw is 0 where the weight is not in [0, 1]. Rows are turned into panels as in
// npu_forward.cpp; the backward keeps the prefixes of a few outs for one register of rows in the first-level cache.
#include "../layers/nmu.h"
#include "api.h"
#include "panel.h"
#include "row_groups.h"

namespace npu {
namespace NPU_ISA {
namespace {

constexpr int kTileRows = 3;
#if defined(__AVX512F__)
constexpr int kTileOuts = 4;
#else
constexpr int kTileOuts = 2;
#endif

// [O / kTileOuts][I][outs of the tile][w, 1 - w]
template <typename T>
void pack(const NmuInputs<T>& in, int64_t model, T* packed) {
  const T* weight = in.weight + model * in.out * in.in;
  for (int64_t o0 = 0; o0 < in.out; o0 += kTileOuts) {
    const int outs = int(least<int64_t>(kTileOuts, in.out - o0));
    for (int64_t i = 0; i < in.in; ++i) {
      for (int n = 0; n < outs; ++n) {
        const T given = weight[(o0 + n) * in.in + i], w = in.clip ? clamp_gate(given) : given;
        *packed++ = w;
        *packed++ = T(1) - w;
      }
    }
  }
}

template <typename T, int R, int N>
void multiply_tile(const T* x, int64_t in, const T* w, typename Simd<T>::Reg (*y)[N]) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  Reg product[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) product[r][n] = S::set1(T(1));
  for (int64_t i = 0; i < in; ++i, x += R * S::width, w += 2 * N) {
    for (int n = 0; n < N; ++n) {
      const Reg weight = S::set1(w[2 * n]), rest = S::set1(w[2 * n + 1]);
      for (int r = 0; r < R; ++r) product[r][n] = product[r][n] * S::fma(weight, S::load(x + r * S::width), rest);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) y[r][n] = product[r][n];
}

template <typename T, int R, int N>
void forward_tile(const NmuForward<T>& f, int64_t first, int64_t rows, int64_t o, const T* x, const T* packed) {
  using S = Simd<T>;
  const NmuInputs<T>& in = f.inputs;
  typename S::Reg y[R][N];
  multiply_tile<T, R, N>(x, in.in, packed + 2 * o * in.in, y);
  for (int r = 0; r < R; ++r) {
    const int valid = int(least<int64_t>(S::width, rows - r * S::width));
    if (valid > 0) store_columns<T>(f.y + (first + r * S::width) * in.out + o, in.out, valid, N, y[r]);
  }
}

template <typename T, int R>
void forward_rows(const NmuForward<T>& f, int64_t model, int64_t row, const T* packed, T* panel) {
  const NmuInputs<T>& in = f.inputs;
  const int64_t rows = least<int64_t>(R * Simd<T>::width, in.rows - row);
  turn<T>(in.x + ((in.shared_x ? 0 : model * in.rows) + row) * in.in, in.in, rows, R, panel);
  const int64_t first = model * in.rows + row;
  int64_t o = 0;
  for (; o + kTileOuts <= in.out; o += kTileOuts) forward_tile<T, R, kTileOuts>(f, first, rows, o, panel, packed);
  switch (in.out - o) {
    case 1:
      return forward_tile<T, R, 1>(f, first, rows, o, panel, packed);
#if defined(__AVX512F__)
    case 2:
      return forward_tile<T, R, 2>(f, first, rows, o, panel, packed);
    case 3:
      return forward_tile<T, R, 3>(f, first, rows, o, panel, packed);
#endif
  }
}

// One row group of one model.
template <typename T>
class BackwardGroup {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;

 public:
  explicit BackwardGroup(const NmuBackward<T>& f)
      : f_(f),
        in_(f.inputs),
        packed_(2 * in_.in * in_.out),
        x_(in_.in * kRegisters * W),
        grad_x_(in_.in * kRegisters * W),
        grad_y_(in_.out * kRegisters * W),
        prefix_(in_.in * kTileOuts * W),
        lanes_(in_.in * kTileOuts * W) {}

  // grad_weight: [O, I], overwritten by the sums over rows [begin, end).
  void run(int64_t model, int64_t begin, int64_t end, T* grad_weight) {
    pack<T>(in_, model, packed_);
    if (grad_weight != nullptr) std::memset(grad_weight, 0, size_t(in_.out * in_.in) * sizeof(T));
    for (int64_t row = begin; row < end; row += kRegisters * W) {
      const int64_t rows = least<int64_t>(kRegisters * W, end - row), registers = ceil_div(rows, W);
      turn<T>(in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in, in_.in, rows, registers, x_);
      turn<T>(f_.grad_y + (model * in_.rows + row) * in_.out, in_.out, rows, registers, grad_y_);
      std::memset(grad_x_, 0, size_t(in_.in * registers * W) * sizeof(T));
      int64_t o = 0;
      for (; o + kTileOuts <= in_.out; o += kTileOuts) outs<kTileOuts>(o, registers, grad_weight);
      for (; o < in_.out; ++o) outs<1>(o, registers, grad_weight);
      if (f_.grad_x != nullptr)
        turn_back<T>(grad_x_, in_.in, rows, registers, f_.grad_x + (model * in_.rows + row) * in_.in);
    }
  }

 private:
  static constexpr int64_t kRegisters = 4;

  template <int N>
  void outs(int64_t o, int64_t registers, T* grad_weight) {
    const T* weights = packed_ + 2 * o * in_.in;
    const int64_t step = N == 1 ? tile_width(o) : N;  // outs of the packed tile that o lies in
    if (N == 1) weights = packed_ + 2 * (o / kTileOuts * kTileOuts) * in_.in + 2 * (o % kTileOuts);
    std::memset(lanes_, 0, size_t(in_.in * N * W) * sizeof(T));
    for (int64_t v = 0; v < registers; ++v) {
      Reg product[N], suffix[N];
      for (int n = 0; n < N; ++n) {
        product[n] = S::set1(T(1));
        suffix[n] = S::load(grad_y_ + ((o + n) * registers + v) * W);
      }
      for (int64_t i = 0; i < in_.in; ++i) {
        const Reg x = S::load(x_ + (i * registers + v) * W);
        const T* w = weights + 2 * i * step;
        for (int n = 0; n < N; ++n) {
          S::store(prefix_ + (i * N + n) * W, product[n]);
          product[n] = product[n] * S::fma(S::set1(w[2 * n]), x, S::set1(w[2 * n + 1]));
        }
      }
      for (int64_t i = in_.in - 1; i >= 0; --i) {
        const Reg x = S::load(x_ + (i * registers + v) * W), x_less_one = x - S::set1(T(1));
        T* grad_x = grad_x_ + (i * registers + v) * W;
        Reg dx = S::load(grad_x);
        const T* w = weights + 2 * i * step;
        for (int n = 0; n < N; ++n) {
          T* lane = lanes_ + (i * N + n) * W;
          const Reg weight = S::set1(w[2 * n]);
          const Reg others = suffix[n] * S::load(prefix_ + (i * N + n) * W);
          S::store(lane, S::fma(others, x_less_one, S::load(lane)));
          dx = S::fma(others, weight, dx);
          suffix[n] = suffix[n] * S::fma(weight, x, S::set1(w[2 * n + 1]));
        }
        S::store(grad_x, dx);
      }
    }
    if (grad_weight == nullptr) return;
    for (int n = 0; n < N; ++n) {
      for (int64_t i = 0; i < in_.in; i += W) {
        const int count = int(least<int64_t>(W, in_.in - i));
        Reg lane[W];
        for (int c = 0; c < W; ++c) lane[c] = c < count ? S::load(lanes_ + ((i + c) * N + n) * W) : S::zero();
        T* at = grad_weight + (o + n) * in_.in + i;
        S::store_first(at, S::load_first(at, count) + S::sum_each(lane), count);
      }
    }
  }

  int64_t tile_width(int64_t o) const { return least<int64_t>(kTileOuts, in_.out - o / kTileOuts * kTileOuts); }

  const NmuBackward<T>& f_;
  const NmuInputs<T>& in_;
  Scratch<T> packed_, x_, grad_x_, grad_y_, prefix_, lanes_;
};

}  // namespace

template <typename T>
void nmu_forward(const NmuForward<T>& f, const Parallel& parallel) {
  constexpr int64_t kRows = kTileRows * Simd<T>::width;
  const NmuInputs<T>& in = f.inputs;
  const int64_t tiles = ceil_div(in.rows, kRows);
  parallel.over(in.models * tiles, [&](int64_t begin, int64_t end) {
    Scratch<T> packed(2 * in.in * in.out), panel(in.in * kRows);
    int64_t packed_model = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / tiles, row = task % tiles * kRows;
      if (model != packed_model) pack<T>(in, model, packed);
      packed_model = model;
      const int64_t registers = ceil_div(least(kRows, in.rows - row), Simd<T>::width);
      if (registers == 1) forward_rows<T, 1>(f, model, row, packed, panel);
      else if (registers == 2) forward_rows<T, 2>(f, model, row, packed, panel);
      else forward_rows<T, kTileRows>(f, model, row, packed, panel);
    }
  });
}

template <typename T>
void nmu_backward(const NmuBackward<T>& f, const Parallel& parallel) {
  const int64_t size = f.inputs.out * f.inputs.in;
  const RowGroups groups(f.inputs.rows, Simd<T>::width, (int64_t(1) << 21) / most<int64_t>(size, 1));
  sum_rows(f.inputs.models, groups, size, parallel, f.grad_weight, [&] { return BackwardGroup<T>(f); });
  if (f.grad_weight == nullptr || !f.inputs.clip) return;
  for (int64_t n = 0; n < f.inputs.models * size; ++n)
    if (!(f.inputs.weight[n] >= T(0) && f.inputs.weight[n] <= T(1))) f.grad_weight[n] = T(0);
}

template void nmu_forward<float>(const NmuForward<float>&, const Parallel&);
template void nmu_forward<double>(const NmuForward<double>&, const Parallel&);
template void nmu_backward<float>(const NmuBackward<float>&, const Parallel&);
template void nmu_backward<double>(const NmuBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
