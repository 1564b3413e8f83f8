// Forward of the Neural Power Unit family, one pass over the data (equations: Heim, Pevny, Smidl 2020, definition of
// the NPU).
//
//   r = ghat (|x| + eps) + (1 - ghat)        ghat = clamp(gate, 0, 1); ones without a gate (NaiveNPU)
//   L = log r,   m = [x < 0]
//   P = sum_i L wr - pi m ghat wi            Q = sum_i L wi + pi m ghat wr       (wi = 0: RealNPU)
//   y = exp(P) cos(Q),  s = exp(P) sin(Q)
//
// A tile of rows is turned into a panel (L and the bits of m, [I][registers of rows]); register tiles of P and Q run
// over I with broadcast weights; exp and sincos finish them before they leave the first-level cache. No [B, I] array is
// written, none of size [B, O] but the results. A tile without a negative input leaves out its mask products.
#include "api.h"
#include "panel.h"
#include "vector_math.h"

namespace npu {
namespace NPU_ISA {
namespace {

// Registers of a tile of P and of Q: rows x outs, sized to the register file.
#if defined(__AVX512F__)
constexpr int kTileRows = 3;
constexpr int kTileOuts = 4;
#else
constexpr int kTileRows = 3;
constexpr int kTileOuts = 2;
#endif

constexpr double kPi = 3.14159265358979323846;

// Weights of one model in the order the tiles read them: [O / kTileOuts][I][outs of the tile][parts], where the parts
// are wr, pi ghat wr (and wi, -pi ghat wi with imaginary weights).
template <typename T, bool complex>
struct PackedWeights {
  static constexpr int parts = complex ? 4 : 2;

  static void pack(const NpuInputs<T>& in, int64_t model, const T* gate, int64_t out_begin, int64_t out_end,
                   T* packed) {
    const T* wr = in.weight_re + model * in.out * in.in;
    const T* wi = complex ? in.weight_im + model * in.out * in.in : nullptr;
    for (int64_t o0 = out_begin; o0 < out_end; o0 += kTileOuts) {
      const int outs = int(least<int64_t>(kTileOuts, in.out - o0));
      T* block = packed + o0 * in.in * parts;
      for (int n = 0; n < outs; ++n) {
        for (int64_t i = 0; i < in.in; ++i) {
          T* w = block + (i * outs + n) * parts;
          const T phase = T(kPi) * gate[i];
          w[0] = wr[(o0 + n) * in.in + i];
          w[1] = phase * w[0];
          if constexpr (complex) {
            w[2] = wi[(o0 + n) * in.in + i];
            w[3] = -phase * w[2];
          }
        }
      }
    }
  }
};

// p[r][n] = sum_i L[i][r] wr[n][i] - pi m ghat wi,  q likewise;  R registers of rows, N outs.
template <typename T, bool complex, bool negative, int R, int N>
void product_tile(const T* log_r, const typename Simd<T>::Mask* mask, int64_t in, const T* w, T* p_out, T* q_out) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  constexpr int parts = PackedWeights<T, complex>::parts;
  Reg p[R][N] = {}, q[R][N] = {};
  for (int64_t i = 0; i < in; ++i, log_r += R * W, mask += R, w += N * parts) {
    Reg l[R];
    for (int r = 0; r < R; ++r) l[r] = S::load(log_r + r * W);
    for (int n = 0; n < N; ++n) {
      const Reg re = S::set1(w[n * parts]);
      for (int r = 0; r < R; ++r) p[r][n] = S::fma(l[r], re, p[r][n]);
      if constexpr (negative) {
        const Reg turn = S::set1(w[n * parts + 1]);
        for (int r = 0; r < R; ++r) q[r][n] = S::add_masked(q[r][n], mask[r], turn);
      }
      if constexpr (complex) {
        const Reg im = S::set1(w[n * parts + 2]);
        for (int r = 0; r < R; ++r) q[r][n] = S::fma(l[r], im, q[r][n]);
        if constexpr (negative) {
          const Reg shrink = S::set1(w[n * parts + 3]);
          for (int r = 0; r < R; ++r) p[r][n] = S::add_masked(p[r][n], mask[r], shrink);
        }
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int r = 0; r < R; ++r) {
      S::store(p_out + (n * R + r) * W, p[r][n]);
      S::store(q_out + (n * R + r) * W, q[r][n]);
    }
  }
}

template <typename T, bool complex, bool negative, int R>
void product_tile_of(int outs, const T* log_r, const typename Simd<T>::Mask* mask, int64_t in, const T* w, T* p, T* q) {
  switch (outs) {
    case 1:
      return product_tile<T, complex, negative, R, 1>(log_r, mask, in, w, p, q);
    case 2:
      return product_tile<T, complex, negative, R, 2>(log_r, mask, in, w, p, q);
#if defined(__AVX512F__)
    case 3:
      return product_tile<T, complex, negative, R, 3>(log_r, mask, in, w, p, q);
    case 4:
      return product_tile<T, complex, negative, R, 4>(log_r, mask, in, w, p, q);
#endif
  }
}

// L and m of R registers of rows, as [I][R]; returns whether any x is negative.
template <typename T, int R>
bool log_panel(const NpuInputs<T>& in, const T* x, int64_t rows, const T* gate, T* log_r,
               typename Simd<T>::Mask* mask) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  const Reg eps = S::set1(in.eps);
  bool negative = false;
  for (int r = 0; r < R; ++r) {
    const int valid = int(most<int64_t>(0, least<int64_t>(W, rows - r * W)));
    for (int64_t i0 = 0; i0 < in.in; i0 += W) {
      const int count = int(least<int64_t>(W, in.in - i0));
      Reg column[W];
      load_columns<T>(x + r * W * in.in + i0, in.in, valid, count, column);
      for (int c = 0; c < count; ++c) {
        const Reg g = S::set1(gate[i0 + c]);
        const Reg size = S::fma(g, S::abs(column[c]) + eps, S::set1(T(1)) - g);
        S::store(log_r + ((i0 + c) * R + r) * W, VectorMath<T>::log(size));
        negative |= S::store_negative(mask + (i0 + c) * R + r, column[c]);
      }
    }
  }
  return negative;
}

// One tile of R * width rows, all outs.
template <typename T, bool complex, int R>
void forward_rows(const NpuForward<T>& f, int64_t model, int64_t row, const T* gate, const T* packed, T* log_r,
                  typename Simd<T>::Mask* mask) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  const NpuInputs<T>& in = f.inputs;
  const T* x = in.x + ((in.shared_x ? 0 : model * in.rows) + row) * in.in;
  const int64_t rows = least<int64_t>(R * W, in.rows - row);
  const bool negative = log_panel<T, R>(in, x, rows, gate, log_r, mask);
  alignas(64) T p[W * R * W], q[W * R * W];
  for (int64_t o0 = 0; o0 < in.out; o0 += W) {
    const int outs = int(least<int64_t>(W, in.out - o0));
    for (int n = 0; n < outs; n += kTileOuts) {
      const int tile = least(kTileOuts, outs - n);
      const T* w = packed + (o0 + n) * in.in * PackedWeights<T, complex>::parts;
      if (negative) product_tile_of<T, complex, true, R>(tile, log_r, mask, in.in, w, p + n * R * W, q + n * R * W);
      else product_tile_of<T, complex, false, R>(tile, log_r, mask, in.in, w, p + n * R * W, q + n * R * W);
    }
    for (int r = 0; r < R && r * W < rows; ++r) {
      Reg y[W], s[W];
      for (int n = 0; n < outs; ++n) {
        const Reg size = VectorMath<T>::exp(S::load(p + (n * R + r) * W));
        Reg sine, cosine;
        VectorMath<T>::sincos(S::load(q + (n * R + r) * W), &sine, &cosine);
        y[n] = size * cosine;
        s[n] = size * sine;
      }
      const int valid = int(least<int64_t>(W, rows - r * W));
      const int64_t at = (model * in.rows + row + r * W) * in.out + o0;
      store_columns<T>(f.y + at, in.out, valid, outs, y);
      if (f.s != nullptr) store_columns<T>(f.s + at, in.out, valid, outs, s);
    }
  }
}

template <typename T, bool complex>
void forward(const NpuForward<T>& f, const Parallel& parallel) {
  using S = Simd<T>;
  constexpr int64_t kRows = kTileRows * S::width;
  const NpuInputs<T>& in = f.inputs;
  const int64_t tiles = ceil_div(in.rows, kRows);
  const int64_t packed_size = in.out * in.in * PackedWeights<T, complex>::parts;

  // Many models: each task packs the weights that it meets. One model: they are packed once, by all threads.
  const bool pack_shared = in.models == 1;
  Scratch<T> shared_gate(pack_shared ? in.in : 0), shared_packed(pack_shared ? packed_size : 0);
  const auto gates_of = [&](int64_t model, T* gate) {
    for (int64_t i = 0; i < in.in; ++i) gate[i] = in.gate == nullptr ? T(1) : clamp_gate(in.gate[model * in.in + i]);
  };
  if (pack_shared && tiles > 0) {
    gates_of(0, shared_gate);
    const int64_t blocks = ceil_div(in.out, kTileOuts);
    const Parallel serial;
    const Parallel& packers = packed_size > (1 << 16) ? parallel : serial;
    packers.over(blocks, [&](int64_t begin, int64_t end) {
      PackedWeights<T, complex>::pack(in, 0, shared_gate, begin * kTileOuts, least(end * kTileOuts, in.out),
                                      shared_packed);
    });
  }

  parallel.over(in.models * tiles, [&](int64_t begin, int64_t end) {
    Scratch<T> log_r(in.in * kRows);
    Scratch<typename S::Mask> mask(in.in * kTileRows);
    Scratch<T> own_gate(pack_shared ? 0 : in.in), own_packed(pack_shared ? 0 : packed_size);
    const T* gate = pack_shared ? shared_gate : own_gate;
    const T* packed = pack_shared ? shared_packed : own_packed;
    int64_t packed_model = pack_shared ? 0 : -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / tiles, row = task % tiles * kRows;
      if (model != packed_model) {
        gates_of(model, own_gate);
        PackedWeights<T, complex>::pack(in, model, own_gate, 0, in.out, own_packed);
        packed_model = model;
      }
      const int64_t registers = ceil_div(least(kRows, in.rows - row), S::width);
      if (registers == 1) forward_rows<T, complex, 1>(f, model, row, gate, packed, log_r, mask);
      else if (registers == 2) forward_rows<T, complex, 2>(f, model, row, gate, packed, log_r, mask);
      else forward_rows<T, complex, kTileRows>(f, model, row, gate, packed, log_r, mask);
    }
  });
}

}  // namespace

template <typename T>
void npu_forward(const NpuForward<T>& f, const Parallel& parallel) {
  if (f.inputs.weight_im != nullptr) forward<T, true>(f, parallel);
  else forward<T, false>(f, parallel);
}

template void npu_forward<float>(const NpuForward<float>&, const Parallel&);
template void npu_forward<double>(const NpuForward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
