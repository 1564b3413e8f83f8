// The backward in which a register holds one feature of `width` rows, for few inputs (npu/limits.h).
//
// A chunk's x, L, dP and dQ are transposed into panels [feature][rows]. The weight sums end in sums over the lanes.
#pragma once

#include "npu/backward.h"

namespace npu {
namespace NPU_ISA {
namespace narrow {

// Register tiles. dL: rows x inputs accumulators. Weight sums: inputs x outputs, each with up to four accumulators.
#if defined(__AVX512F__)
constexpr int kSpreadRows = 3, kSpreadInputs = 8;
constexpr int kComplexInputs = 2, kComplexOutputs = 3;
constexpr int kRealInputs = 3, kRealOutputs = 4;
#else
constexpr int kSpreadRows = 3, kSpreadInputs = 4;
constexpr int kComplexInputs = 1, kComplexOutputs = 3;
constexpr int kRealInputs = 2, kRealOutputs = 3;
#endif

// Registers of rows that an accumulator of the weight sums, or of the gate's, takes up before it joins the total: every
// addition to an accumulator of equal terms rounds the same way, so that errors grow with the length of a run.
constexpr int64_t kSumRun = 16;
constexpr int64_t kGateRun = 8 * kSpreadRows;

template <bool complex>
struct SumTile {
  static constexpr int ins = complex ? kComplexInputs : kRealInputs;
  static constexpr int outputs = complex ? kComplexOutputs : kRealOutputs;
};

// Rows of a chunk as panels: feature-major, `stride` elements (a whole number of registers) per feature.
template <typename T>
struct Chunk {
  int64_t rows, registers, stride;
  T *x, *log_r;                  // [I][stride]; x is overwritten by dx
  typename Simd<T>::Mask* mask;  // [I][registers]
  bool* negative;                // [I]: any x < 0
  T *grad_p, *grad_q;            // [O][stride]
};

// dl[r][n] = sum_o dP wr + dQ wi;  w: [O][kSpreadInputs][wr, wi].
template <typename T, bool complex, int R, int N>
NPU_INLINE void spread_tile(const Chunk<T>& c, int64_t reg, int64_t out, const T* w, typename Simd<T>::Reg (*dl)[N]) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  const T* grad_p = c.grad_p + reg * S::width;
  const T* grad_q = c.grad_q + reg * S::width;
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) dl[r][n] = S::zero();
  for (int64_t o = 0; o < out;) {
    Reg acc[R][N] = {};
    for (const int64_t end = min(o + kRun, out); o < end; ++o) {
      Reg dp[R], dq[R];
      for (int r = 0; r < R; ++r) {
        dp[r] = S::load(grad_p + r * S::width);
        if constexpr (complex) dq[r] = S::load(grad_q + r * S::width);
      }
      for (int n = 0; n < N; ++n) {
        const Reg re = S::set1(w[complex ? 2 * n : n]);
        for (int r = 0; r < R; ++r) acc[r][n] = S::fma(dp[r], re, acc[r][n]);
        if constexpr (complex) {
          const Reg im = S::set1(w[2 * n + 1]);
          for (int r = 0; r < R; ++r) acc[r][n] = S::fma(dq[r], im, acc[r][n]);
        }
      }
      grad_p += c.stride, grad_q += c.stride, w += kSpreadInputs * (complex ? 2 : 1);
    }
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) dl[r][n] = dl[r][n] + acc[r][n];
  }
}

// dx over x's panel, and the gate's sums over rows, of dL [registers][stride].
template <typename T>
__attribute__((noinline)) void finish_columns(const NpuInputs<T>& in, const Chunk<T>& c, int64_t reg, int registers,
                                              int64_t i, int ins, int stride, const T* gate,
                                              const typename Simd<T>::Reg* dl, T* gate_lanes) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  for (int n = 0; n < ins; ++n) {
    const Gate<T> g(S::set1(gate[i + n]), S::set1(in.eps));
    Reg gate_sum = S::zero();
    for (int r = 0; r < registers; ++r) {
      T* at = c.x + (i + n) * c.stride + (reg + r) * S::width;
      const Reg x = S::load(at);
      S::store(at, g.spread(dl[r * stride + n], x, &gate_sum));
    }
    T* lanes = gate_lanes + (i + n) * S::width;
    S::store(lanes, S::load(lanes) + gate_sum);
  }
}

// dL of N inputs from i on, R registers of rows; finished to dx (over x's panel) and to the gate's sums over rows.
template <typename T, bool complex, int R, int N>
void spread(const NpuInputs<T>& in, const Chunk<T>& c, int64_t reg, int64_t i, int ins, const T* gate, const T* w,
            T* gate_lanes) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  Reg dl[R][N];
  spread_tile<T, complex, R, N>(c, reg, in.out, w, dl);
  finish_columns<T>(in, c, reg, R, i, ins, N, gate, &dl[0][0], gate_lanes);
}

// Weights of one model for `spread`: [I / kSpreadInputs][O][kSpreadInputs][wr, wi], zeros behind I.
template <typename T, bool complex>
void pack_spread(const NpuInputs<T>& in, int64_t model, int64_t block, T* packed) {
  constexpr int parts = complex ? 2 : 1;
  const T* wr = in.weight_re + model * in.out * in.in;
  const T* wi = complex ? in.weight_im + model * in.out * in.in : nullptr;
  const int64_t i0 = block * kSpreadInputs;
  T* w = packed + i0 * in.out * parts;
  for (int64_t o = 0; o < in.out; ++o) {
    for (int n = 0; n < kSpreadInputs; ++n, w += parts) {
      const bool inside = i0 + n < in.in;
      w[0] = inside ? wr[o * in.in + i0 + n] : T(0);
      if constexpr (complex) w[1] = inside ? wi[o * in.in + i0 + n] : T(0);
    }
  }
}

// Adds the weight sums of NI inputs from i and NO outputs from o over a chunk's rows to sums[part][O][I].
template <typename T, bool complex, bool negative, int NI, int NO>
void sum_tile(const NpuInputs<T>& in, const Chunk<T>& c, int64_t i, int64_t o, T* sums) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  constexpr int parts = negative ? kParts<complex> : (complex ? 2 : 1);
  constexpr int total = parts * NI * NO;
  const T *log_r[NI], *grad_p[NO], *grad_q[NO];
  const typename S::Mask* mask[NI];
  for (int a = 0; a < NI; ++a) {
    log_r[a] = c.log_r + (i + a) * c.stride;
    mask[a] = c.mask + (i + a) * c.registers;
  }
  for (int b = 0; b < NO; ++b) {
    grad_p[b] = c.grad_p + (o + b) * c.stride;
    grad_q[b] = c.grad_q + (o + b) * c.stride;
  }
  // The totals of all accumulators, in the order of their sums over lanes.
  constexpr int padded = (total + W - 1) / W * W;
  Reg all[padded];
  for (int n = total; n < padded; ++n) all[n] = S::zero();
  int64_t v = 0;
  do {
    const bool first = v == 0;
    Reg sp[NI][NO] = {}, sq[NI][NO] = {}, mp[NI][NO] = {}, mq[NI][NO] = {};
    for (const int64_t end = min(v + kSumRun, c.registers); v < end; ++v) {
      Reg dp[NO], dq[NO];
      for (int b = 0; b < NO; ++b) {
        dp[b] = S::load(grad_p[b] + v * W);
        if constexpr (complex || negative) dq[b] = S::load(grad_q[b] + v * W);
      }
      for (int a = 0; a < NI; ++a) {
        const Reg l = S::load(log_r[a] + v * W);
        for (int b = 0; b < NO; ++b) sp[a][b] = S::fma(dp[b], l, sp[a][b]);
        if constexpr (complex)
          for (int b = 0; b < NO; ++b) sq[a][b] = S::fma(dq[b], l, sq[a][b]);
        if constexpr (negative) {
          for (int b = 0; b < NO; ++b) mq[a][b] = S::add_masked(mq[a][b], mask[a][v], dq[b]);
          if constexpr (complex)
            for (int b = 0; b < NO; ++b) mp[a][b] = S::add_masked(mp[a][b], mask[a][v], dp[b]);
        }
      }
    }
    const auto join = [&](const auto& take) __attribute__((always_inline)) {
      for (int a = 0; a < NI; ++a) {
        for (int b = 0; b < NO; ++b) {
          Reg* sum = all + b * NI + a;
          take(sum, sp[a][b]);
          if constexpr (parts > 1) take(sum + NI * NO, negative ? mq[a][b] : sq[a][b]);
          if constexpr (parts > 2) take(sum + 2 * NI * NO, sq[a][b]);
          if constexpr (parts > 3) take(sum + 3 * NI * NO, mp[a][b]);
        }
      }
    };
    if (first) join([](Reg* sum, Reg run) __attribute__((always_inline)) { *sum = run; });
    else join([](Reg* sum, Reg run) __attribute__((always_inline)) { *sum = *sum + run; });
  } while (v < c.registers);
  constexpr Part order[4] = {kSP, negative ? kMQ : kSQ, kSQ, kMP};
  T totals[padded];
  for (int n = 0; n < padded; n += W) S::store(totals + n, S::sum_each(all + n));
  for (int part = 0; part < parts; ++part)
    for (int b = 0; b < NO; ++b)
      for (int a = 0; a < NI; ++a)
        sums[(order[part] * in.out + o + b) * in.in + i + a] += totals[(part * NO + b) * NI + a];
}

template <typename T, bool complex, bool negative>
void sum_tile_of(int ins, int outputs, const NpuInputs<T>& in, const Chunk<T>& c, int64_t i, int64_t o, T* sums) {
  with_constant<1, SumTile<complex>::ins>(ins, [&](auto ni) {
    with_constant<1, SumTile<complex>::outputs>(outputs, [&](auto no) {
      sum_tile<T, complex, negative, decltype(ni)::value, decltype(no)::value>(in, c, i, o, sums);
    });
  });
}

// x, L and m of `count` <= width features from i on.
template <typename T>
void transpose_inputs(const NpuInputs<T>& in, const T* x, int64_t i, int count, const T* gate, const Chunk<T>& c) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  const Reg eps = S::set1(in.eps);
  for (int n = 0; n < count; ++n) c.negative[i + n] = false;
  constexpr int R = 4;  // registers of rows at once: neighbouring logarithms do not wait for one another
  for (int64_t v = 0; v < c.registers; v += R) {
    const int registers = int(min<int64_t>(R, c.registers - v));
    Reg column[R][W];
    for (int r = 0; r < registers; ++r)
      load_columns_inline<T>(x + (v + r) * W * in.in + i, in.in, int(min<int64_t>(W, c.rows - (v + r) * W)), count,
                             column[r]);
    for (int n = 0; n < count; ++n) {
      const Gate<T> g(S::set1(gate[i + n]), eps);
      const int64_t at = (i + n) * c.stride + v * W;
      bool negative = false;
      for (int r = 0; r < registers; ++r) {
        const Reg value = column[r][n];
        S::store(c.x + at + r * W, value);
        S::store(c.log_r + at + r * W, g.log(value));
        negative |= S::store_negative(c.mask + (i + n) * c.registers + v + r, value);
      }
      c.negative[i + n] |= negative;
    }
  }
}

// dP and dQ; rows behind the chunk's last one are zero. Rows in their order, since memory is slower where each register
// of outputs takes its own lines of all rows.
template <typename T>
void transpose_gradients(const NpuBackward<T>& f, int64_t first_row, const Chunk<T>& c) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  const int64_t out = f.inputs.out, left = f.inputs.models * f.inputs.rows - first_row;
  const T* const from[3] = {f.grad_y + first_row * out, f.y + first_row * out, f.s + first_row * out};
  for (int64_t v = 0; v < c.registers; ++v) {
    const int rows = int(min<int64_t>(W, c.rows - v * W));
    for (int64_t o = 0; o < out; o += W) {
      const int count = int(min<int64_t>(W, out - o));
      const int64_t at = v * W * out + o;
      Reg column[3][W];
#pragma GCC unroll 1  // one transposition in the code, not three
      for (int n = 0; n < 3; ++n) {
        fetch_part<T>(from[n] + (v + 1) * W * out, left - (v + 1) * W, out, o, count);
        load_columns_inline<T>(from[n] + at, out, rows, count, column[n]);
      }
      for (int n = 0; n < count; ++n) {
        S::store(c.grad_p + (o + n) * c.stride + v * W, column[0][n] * column[1][n]);
        S::store(c.grad_q + (o + n) * c.stride + v * W, -column[0][n] * column[2][n]);
      }
    }
  }
}

// The panel of dx, as rows.
template <typename T>
void transpose_back(const NpuInputs<T>& in, const Chunk<T>& c, T* grad_x) {
  using S = Simd<T>;
  constexpr int W = S::width;
  for (int64_t i = 0; i < in.in; i += W) {
    const int count = int(min<int64_t>(W, in.in - i));
    for (int64_t v = 0; v < c.registers; ++v) {
      typename S::Reg column[W];
      for (int n = 0; n < count; ++n) column[n] = S::load(c.x + (i + n) * c.stride + v * W);
      const int rows = int(min<int64_t>(W, c.rows - v * W));
      store_columns_inline<T>(grad_x + v * W * in.in + i, in.in, rows, count, column);
    }
  }
}

template <typename T, bool complex>
class Group {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;

 public:
  using Order = PlainOrder<T, complex>;
  // For spans of at most so many rows.
  Group(const NpuBackward<T>& f, int64_t rows)
      : f_(f),
        in_(f.inputs),
        chunk_rows_(rows_of_a_chunk(rows)),
        packed_(ceil_div(in_.in, kSpreadInputs) * kSpreadInputs * in_.out * (complex ? 2 : 1)),
        gate_lanes_(in_.in * W),
        panels_(2 * (in_.in + in_.out) * chunk_rows_),
        masks_(in_.in * chunk_rows_ / W),
        negative_(in_.in) {}

  static constexpr bool kShares = false;
  static constexpr int64_t kSpan = 1024;  // a chunk
  static bool writes_gradients(const NpuBackward<T>&) { return false; }

  void run(const GroupTask<T>& task, const Parallel&) const {
    std::memset(task.sums, 0, size_t(kParts<complex> * in_.out * in_.in) * sizeof(T));
    const int64_t blocks = ceil_div(in_.in, kSpreadInputs);
    for (int64_t block = 0; task.want_spread && block < blocks; ++block)
      pack_spread<T, complex>(in_, task.model, block, packed_);
    for (int64_t row = task.begin; row < task.end; row += chunk_rows_) {
      Chunk<T> c;
      c.rows = min(chunk_rows_, task.end - row);
      c.registers = ceil_div(c.rows, W);
      c.stride = c.registers * W;
      c.x = panels_;
      c.log_r = c.x + in_.in * c.stride;
      c.grad_p = c.log_r + in_.in * c.stride;
      c.grad_q = c.grad_p + in_.out * c.stride;
      c.mask = masks_;
      c.negative = negative_;
      transpose(task, row, c);
      if (task.want_spread) spread_all(task, row, packed_, c);
      if (task.want_sums) sum_all(c, task.sums);
    }
  }

 private:
  // Long chunks, since every chunk ends with sums over lanes; 16 MiB of panels at most.
  int64_t rows_of_a_chunk(int64_t rows) const {
    const int64_t row_size = 2 * max<int64_t>(in_.in + in_.out, 1) * int64_t(sizeof(T));
    const int64_t most_rows = max<int64_t>(128, min<int64_t>(kSpan, (int64_t(1) << 24) / row_size)) / W * W;
    return max<int64_t>(W, min(most_rows, ceil_div(rows, W) * W));
  }

  void transpose(const GroupTask<T>& task, int64_t row, const Chunk<T>& c) const {
    const T* x = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + row) * in_.in;
    for (int64_t i = 0; i < in_.in; i += W)
      transpose_inputs<T>(in_, x, i, int(min<int64_t>(W, in_.in - i)), task.gate, c);
    transpose_gradients<T>(f_, task.model * in_.rows + row, c);
  }

  void spread_all(const GroupTask<T>& task, int64_t row, const T* packed, const Chunk<T>& c) const {
    T* const gate_lanes = gate_lanes_;
    std::memset(gate_lanes, 0, size_t(in_.in * W) * sizeof(T));
    for (int64_t v = 0; v < c.registers; v += kSpreadRows) {
      const int64_t registers = min<int64_t>(kSpreadRows, c.registers - v);
      for (int64_t i = 0; i < in_.in; i += kSpreadInputs) {
        const int ins = int(min<int64_t>(kSpreadInputs, in_.in - i));
        const T* w = packed + i * in_.out * (complex ? 2 : 1);
        // As many inputs as there are, in pairs.
        if (ins <= 2) spread_ins<2>(task, c, v, registers, i, ins, w, gate_lanes);
        else if (ins <= 4) spread_ins<4>(task, c, v, registers, i, ins, w, gate_lanes);
        else if (ins <= 6) spread_ins<min(6, kSpreadInputs)>(task, c, v, registers, i, ins, w, gate_lanes);
        else spread_ins<kSpreadInputs>(task, c, v, registers, i, ins, w, gate_lanes);
      }
      const bool last = v + kSpreadRows >= c.registers;
      if (last || (v + kSpreadRows) % kGateRun == 0) end_gate_run(task, gate_lanes);
      if (!last && (v + kSpreadRows) % kGateRun == 0) std::memset(gate_lanes, 0, size_t(in_.in * W) * sizeof(T));
    }
    if (f_.grad_x != nullptr) transpose_back<T>(in_, c, f_.grad_x + (task.model * in_.rows + row) * in_.in);
  }

  // Adds the gate's sums of a run over their lanes, and to the total.
  void end_gate_run(const GroupTask<T>& task, const T* gate_lanes) const {
    for (int64_t i = 0; i < in_.in; i += W) {
      const int count = int(min<int64_t>(W, in_.in - i));
      Reg lanes[W];
      for (int n = 0; n < W; ++n) lanes[n] = n < count ? S::load(gate_lanes + (i + n) * W) : S::zero();
      T sums[W];
      S::store(sums, S::sum_each(lanes));
      for (int n = 0; n < count; ++n) task.gate_sums[i + n] += double(sums[n]);
    }
  }

  template <int N>
  void spread_ins(const GroupTask<T>& task, const Chunk<T>& c, int64_t v, int64_t registers, int64_t i, int ins,
                  const T* w, T* gate_lanes) const {
    if (registers == kSpreadRows)
      return spread<T, complex, kSpreadRows, N>(in_, c, v, i, ins, task.gate, w, gate_lanes);
    for (int64_t r = 0; r < registers; ++r) spread<T, complex, 1, N>(in_, c, v + r, i, ins, task.gate, w, gate_lanes);
  }

  void sum_all(const Chunk<T>& c, T* sums) const {
    constexpr int NI = SumTile<complex>::ins, NO = SumTile<complex>::outputs;
    for (int64_t o = 0; o < in_.out; o += NO) {
      const int outputs = int(min<int64_t>(NO, in_.out - o));
      for (int64_t i = 0; i < in_.in; i += NI) {
        const int ins = int(min<int64_t>(NI, in_.in - i));
        bool negative = false;
        for (int a = 0; a < ins; ++a) negative |= c.negative[i + a];
        if (negative) sum_tile_of<T, complex, true>(ins, outputs, in_, c, i, o, sums);
        else sum_tile_of<T, complex, false>(ins, outputs, in_, c, i, o, sums);
      }
    }
  }

  const NpuBackward<T>& f_;
  const NpuInputs<T>& in_;
  const int64_t chunk_rows_;
  Scratch<T> packed_, gate_lanes_, panels_;
  Scratch<typename S::Mask> masks_;
  Scratch<bool> negative_;
};

}  // namespace narrow
}  // namespace NPU_ISA
}  // namespace npu
