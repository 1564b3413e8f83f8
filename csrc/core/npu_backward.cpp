// Backward of the Neural Power Unit family; the forward and its notation stand in npu_forward.cpp.
//
//   dP = grad_y y                 dQ = -grad_y s
//   SP = dP' L    SQ = dQ' L      real products    [O, I]
//   MP = dP' m    MQ = dQ' m      mask products    [O, I]
//   dWr = SP + pi MQ ghat         dWi = SQ - pi MP ghat
//   dL  = dP Wr + dQ Wi           dr = dL / r,  dx = dr ghat sign(x)
//   dghat = sum_b dr (|x| + eps - 1) + pi sum_o (Wr MQ - Wi MP)
//
// The last line takes the gate's phase gradient from the mask products that dW needs anyway: six real products and two
// mask products in all, where autograd through the formula runs twelve with the forward's. RealNPU: no dQ Wi, SQ, MP.
//
// Rows go in groups, whose number follows from the shape alone, and groups in chunks. A chunk's x, L, dP and dQ are
// turned into panels [feature][rows]; then ranges of I are independent: dL, dr, dx and the four weight sums of the
// range. Sums over rows run in a fixed order, so that results do not depend on the number of threads.
#include "api.h"
#include "panel.h"
#include "vector_math.h"

namespace npu {
namespace NPU_ISA {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Register tiles. dL: rows x inputs accumulators. Weight sums: inputs x outs, each with up to four accumulators.
#if defined(__AVX512F__)
constexpr int kSpreadRows = 3, kSpreadIns = 8;
constexpr int kComplexIns = 2, kComplexOuts = 3;
constexpr int kRealIns = 3, kRealOuts = 4;
#else
constexpr int kSpreadRows = 3, kSpreadIns = 4;
constexpr int kComplexIns = 1, kComplexOuts = 3;
constexpr int kRealIns = 2, kRealOuts = 3;
#endif

template <bool complex>
struct SumTile {
  static constexpr int ins = complex ? kComplexIns : kRealIns;
  static constexpr int outs = complex ? kComplexOuts : kRealOuts;
};

// The weight sums of one model and row group: [part][O][I].
enum Part { kSP, kMQ, kSQ, kMP };
template <bool complex>
constexpr int kParts = complex ? 4 : 2;

// Rows of a chunk as panels: feature-major, `stride` elements (a whole number of registers) per feature.
template <typename T>
struct Chunk {
  int64_t rows, registers, stride;
  T *x, *log_r;                  // [I][stride]; x is overwritten by dx
  typename Simd<T>::Mask* mask;  // [I][registers]
  bool* negative;                // [I]: any x < 0
  T *grad_p, *grad_q;            // [O][stride]
};

// dl[r][n] = sum_o dP wr + dQ wi;  w: [O][N][wr, wi].
template <typename T, bool complex, int R, int N>
NPU_INLINE void spread_tile(const Chunk<T>& c, int64_t reg, int64_t out, const T* w, typename Simd<T>::Reg (*dl)[N]) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  const T* grad_p = c.grad_p + reg * S::width;
  const T* grad_q = c.grad_q + reg * S::width;
  Reg acc[R][N] = {};
  for (int64_t o = 0; o < out; ++o, grad_p += c.stride, grad_q += c.stride, w += N * (complex ? 2 : 1)) {
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
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) dl[r][n] = acc[r][n];
}

// dL of N inputs from i on, R registers of rows; finished to dx (over x's panel) and to the gate's sums over rows.
template <typename T, bool complex, int R, int N>
void spread(const NpuInputs<T>& in, const Chunk<T>& c, int64_t reg, int64_t i, int ins, const T* gate, const T* w,
            T* gate_lanes) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  Reg dl[R][N];
  spread_tile<T, complex, R, N>(c, reg, in.out, w, dl);
  const Reg one = S::set1(T(1)), eps = S::set1(in.eps);
  for (int n = 0; n < N; ++n) {
    if (n >= ins) break;
    const Reg g = S::set1(gate[i + n]);
    Reg gate_sum = S::load(gate_lanes + (i + n) * S::width);
    for (int r = 0; r < R; ++r) {
      T* at = c.x + (i + n) * c.stride + (reg + r) * S::width;
      const Reg x = S::load(at);
      const Reg size = S::abs(x) + eps;
      const Reg dr = dl[r][n] / S::fma(g, size, one - g);
      gate_sum = S::fma(dr, size - one, gate_sum);
      const Reg dx = dr * g;
      S::store(at, S::select(x > S::zero(), dx, S::select(x < S::zero(), -dx, x * dx)));  // 0 at 0, nan at nan
    }
    S::store(gate_lanes + (i + n) * S::width, gate_sum);
  }
}

// Weights of one model for `spread`: [I / kSpreadIns][O][kSpreadIns][wr, wi], zeros behind I.
template <typename T, bool complex>
void pack_spread(const NpuInputs<T>& in, int64_t model, int64_t block, T* packed) {
  constexpr int parts = complex ? 2 : 1;
  const T* wr = in.weight_re + model * in.out * in.in;
  const T* wi = complex ? in.weight_im + model * in.out * in.in : nullptr;
  const int64_t i0 = block * kSpreadIns;
  T* w = packed + i0 * in.out * parts;
  for (int64_t o = 0; o < in.out; ++o) {
    for (int n = 0; n < kSpreadIns; ++n, w += parts) {
      const bool inside = i0 + n < in.in;
      w[0] = inside ? wr[o * in.in + i0 + n] : T(0);
      if constexpr (complex) w[1] = inside ? wi[o * in.in + i0 + n] : T(0);
    }
  }
}

// Adds the weight sums of NI inputs from i and NO outs from o over a chunk's rows to sums[part][O][I].
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
  Reg sp[NI][NO] = {}, sq[NI][NO] = {}, mp[NI][NO] = {}, mq[NI][NO] = {};
  for (int64_t v = 0; v < c.registers; ++v) {
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
  // Sums over the lanes, a register's worth of accumulators at a time.
  constexpr int padded = (total + W - 1) / W * W;
  Reg all[padded] = {};
  constexpr Part order[4] = {kSP, negative ? kMQ : kSQ, kSQ, kMP};
  for (int a = 0; a < NI; ++a) {
    for (int b = 0; b < NO; ++b) {
      all[b * NI + a] = sp[a][b];
      if constexpr (parts > 1) all[NI * NO + b * NI + a] = negative ? mq[a][b] : sq[a][b];
      if constexpr (parts > 2) all[2 * NI * NO + b * NI + a] = sq[a][b];
      if constexpr (parts > 3) all[3 * NI * NO + b * NI + a] = mp[a][b];
    }
  }
  T totals[padded];
  for (int n = 0; n < padded; n += W) S::store(totals + n, S::sum_each(all + n));
  for (int part = 0; part < parts; ++part)
    for (int b = 0; b < NO; ++b)
      for (int a = 0; a < NI; ++a)
        sums[(order[part] * in.out + o + b) * in.in + i + a] += totals[(part * NO + b) * NI + a];
}

template <typename T, bool complex, bool negative, int NI>
void sum_tile_of(int outs, const NpuInputs<T>& in, const Chunk<T>& c, int64_t i, int64_t o, T* sums) {
  switch (outs) {
    case 1:
      return sum_tile<T, complex, negative, NI, 1>(in, c, i, o, sums);
    case 2:
      return sum_tile<T, complex, negative, NI, 2>(in, c, i, o, sums);
    case 3:
      return sum_tile<T, complex, negative, NI, 3>(in, c, i, o, sums);
    case 4:
      if constexpr (SumTile<complex>::outs >= 4) return sum_tile<T, complex, negative, NI, 4>(in, c, i, o, sums);
  }
}

template <typename T, bool complex, bool negative>
void sum_tile_of(int ins, int outs, const NpuInputs<T>& in, const Chunk<T>& c, int64_t i, int64_t o, T* sums) {
  switch (ins) {
    case 1:
      return sum_tile_of<T, complex, negative, 1>(outs, in, c, i, o, sums);
    case 2:
      if constexpr (SumTile<complex>::ins >= 2) return sum_tile_of<T, complex, negative, 2>(outs, in, c, i, o, sums);
      break;
    case 3:
      if constexpr (SumTile<complex>::ins >= 3) return sum_tile_of<T, complex, negative, 3>(outs, in, c, i, o, sums);
  }
}

// x, L and m of `count` <= width features from i on.
template <typename T>
void turn_inputs(const NpuInputs<T>& in, const T* x, int64_t i, int count, const T* gate, const Chunk<T>& c) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  const Reg eps = S::set1(in.eps), one = S::set1(T(1));
  for (int n = 0; n < count; ++n) c.negative[i + n] = false;
  for (int64_t v = 0; v < c.registers; ++v) {
    Reg column[W];
    load_columns<T>(x + v * W * in.in + i, in.in, int(least<int64_t>(W, c.rows - v * W)), count, column);
    for (int n = 0; n < count; ++n) {
      const Reg g = S::set1(gate[i + n]);
      S::store(c.x + (i + n) * c.stride + v * W, column[n]);
      S::store(c.log_r + (i + n) * c.stride + v * W, VectorMath<T>::log(S::fma(g, S::abs(column[n]) + eps, one - g)));
      c.negative[i + n] |= S::store_negative(c.mask + (i + n) * c.registers + v, column[n]);
    }
  }
}

// dP and dQ of `count` <= width outs from o on; rows behind the chunk's last one are zero.
template <typename T>
void turn_gradients(const NpuBackward<T>& f, int64_t first_row, int64_t o, int count, const Chunk<T>& c) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  const int64_t out = f.inputs.out;
  for (int64_t v = 0; v < c.registers; ++v) {
    const int64_t at = (first_row + v * W) * out + o;
    const int rows = int(least<int64_t>(W, c.rows - v * W));
    Reg grad_y[W], y[W], s[W];
    load_columns<T>(f.grad_y + at, out, rows, count, grad_y);
    load_columns<T>(f.y + at, out, rows, count, y);
    load_columns<T>(f.s + at, out, rows, count, s);
    for (int n = 0; n < count; ++n) {
      S::store(c.grad_p + (o + n) * c.stride + v * W, grad_y[n] * y[n]);
      S::store(c.grad_q + (o + n) * c.stride + v * W, -grad_y[n] * s[n]);
    }
  }
}

template <typename T, bool complex>
class Backward {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;

 public:
  Backward(const NpuBackward<T>& f, const Parallel& parallel)
      : f_(f),
        in_(f.inputs),
        parallel_(parallel),
        want_spread_(f.grad_x != nullptr || f.grad_gate != nullptr),
        want_sums_(f.grad_weight_re != nullptr || f.grad_weight_im != nullptr || f.grad_gate != nullptr) {
    // Groups and chunks follow from the shape alone: results must not depend on the number of threads.
    const int64_t sums = kParts<complex> * in_.out * in_.in;
    groups_ = most<int64_t>(
        1, least<int64_t>(in_.rows / 512, least<int64_t>(16, (int64_t(1) << 21) / most<int64_t>(sums, 1))));
    group_rows_ = ceil_div(ceil_div(in_.rows, groups_), W) * W;
    // Long chunks, since every chunk ends with sums over lanes; 16 MiB of panels at most.
    const int64_t row_size = 2 * (in_.in + in_.out) * int64_t(sizeof(T));
    chunk_rows_ = most<int64_t>(128, least<int64_t>(1024, (int64_t(1) << 24) / row_size)) / W * W;
    chunk_rows_ = least(chunk_rows_, most<int64_t>(group_rows_, W));
  }

  void run() {
    const int64_t tasks = in_.models * groups_;
    const int64_t sums_size = sums_per_group(), total = sums_size + in_.in;
    // One group: its sums become gradients at once. More: all are kept, and added in order.
    const bool together = groups_ > 1;
    Scratch<T> partial(together ? tasks * total : 0);
    const auto run_tasks = [&](int64_t begin, int64_t end, const Parallel& inner) {
      Scratch<T> own(together ? 0 : total), gate(in_.in);
      for (int64_t task = begin; task < end; ++task) {
        T* sums = together ? partial + task * total : own;
        load_gate(task / groups_, gate);
        group(task / groups_, task % groups_, gate, sums, sums + sums_size, inner);
        if (!together) finish(task, sums, 1, gate);
      }
    };
    const Parallel serial;
    if (parallel_.threads > 1 && tasks < parallel_.threads) run_tasks(0, tasks, parallel_);
    else parallel_.over(tasks, [&](int64_t begin, int64_t end) { run_tasks(begin, end, serial); });
    if (!together) return;
    parallel_.over(in_.models, [&](int64_t begin, int64_t end) {
      Scratch<T> gate(in_.in);
      for (int64_t model = begin; model < end; ++model) {
        load_gate(model, gate);
        finish(model, partial + model * groups_ * total, groups_, gate);
      }
    });
  }

 private:
  int64_t sums_per_group() const { return kParts<complex> * in_.out * in_.in; }

  void load_gate(int64_t model, T* gate) const {
    for (int64_t i = 0; i < in_.in; ++i)
      gate[i] = in_.gate == nullptr ? T(1) : clamp_gate(in_.gate[model * in_.in + i]);
  }

  // The weight sums and the gate's sum over the rows of one group.
  void group(int64_t model, int64_t group, const T* gate, T* sums, T* gate_sums, const Parallel& inner) const {
    std::memset(sums, 0, size_t(sums_per_group()) * sizeof(T));
    const int64_t begin = least(group * group_rows_, in_.rows), end = least(begin + group_rows_, in_.rows);
    const int64_t blocks = ceil_div(in_.in, kSpreadIns);
    Scratch<T> packed(want_spread_ ? blocks * kSpreadIns * in_.out * (complex ? 2 : 1) : 0);
    if (want_spread_) {
      for (int64_t block = 0; block < blocks; ++block) pack_spread<T, complex>(in_, model, block, packed);
    }
    Scratch<T> gate_lanes(in_.in * W);
    std::memset(gate_lanes, 0, size_t(in_.in * W) * sizeof(T));
    Scratch<T> panels(2 * (in_.in + in_.out) * chunk_rows_);
    Scratch<typename S::Mask> masks(in_.in * chunk_rows_ / W);
    Scratch<bool> negative(in_.in);
    for (int64_t row = begin; row < end; row += chunk_rows_) {
      Chunk<T> c;
      c.rows = least(chunk_rows_, end - row);
      c.registers = ceil_div(c.rows, W);
      c.stride = c.registers * W;
      c.x = panels;
      c.log_r = c.x + in_.in * c.stride;
      c.grad_p = c.log_r + in_.in * c.stride;
      c.grad_q = c.grad_p + in_.out * c.stride;
      c.mask = masks;
      c.negative = negative;
      chunk(model, row, gate, packed, c, gate_lanes, sums, inner);
    }
    for (int64_t i = 0; i < in_.in; ++i) {
      T sum = 0;
      for (int l = 0; l < W; ++l) sum += gate_lanes[i * W + l];
      gate_sums[i] = sum;
    }
  }

  void chunk(int64_t model, int64_t row, const T* gate, const T* packed, const Chunk<T>& c, T* gate_lanes, T* sums,
             const Parallel& inner) const {
    const int64_t in_blocks = ceil_div(in_.in, W), out_blocks = ceil_div(in_.out, W);
    const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
    inner.over(in_blocks + out_blocks, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        if (b < in_blocks) {
          turn_inputs<T>(in_, x, b * W, int(least<int64_t>(W, in_.in - b * W)), gate, c);
        } else {
          const int64_t o = (b - in_blocks) * W;
          turn_gradients<T>(f_, model * in_.rows + row, o, int(least<int64_t>(W, in_.out - o)), c);
        }
      }
    });
    // A range's L stays in the second-level cache while all outs pass over it.
    const int64_t share = ceil_div(ceil_div(in_.in, kSpreadIns), 4 * inner.threads) * kSpreadIns;
    const int64_t range = least<int64_t>(64, inner.threads > 1 ? share : 64);
    inner.over(ceil_div(in_.in, range), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t i0 = n * range, i1 = least(i0 + range, in_.in);
        if (want_spread_) spread_range(model, row, gate, packed, c, i0, i1, gate_lanes);
        if (want_sums_) sum_range(c, i0, i1, sums);
      }
    });
  }

  void spread_range(int64_t model, int64_t row, const T* gate, const T* packed, const Chunk<T>& c, int64_t i0,
                    int64_t i1, T* gate_lanes) const {
    for (int64_t v = 0; v < c.registers; v += kSpreadRows) {
      const int64_t registers = least<int64_t>(kSpreadRows, c.registers - v);
      for (int64_t i = i0; i < i1; i += kSpreadIns) {
        const int ins = int(least<int64_t>(kSpreadIns, i1 - i));
        const T* w = packed + i * in_.out * (complex ? 2 : 1);
        if (registers == kSpreadRows)
          spread<T, complex, kSpreadRows, kSpreadIns>(in_, c, v, i, ins, gate, w, gate_lanes);
        else
          for (int64_t r = 0; r < registers; ++r)
            spread<T, complex, 1, kSpreadIns>(in_, c, v + r, i, ins, gate, w, gate_lanes);
      }
    }
    if (f_.grad_x == nullptr) return;
    for (int64_t i = i0; i < i1; i += W) {
      const int count = int(least<int64_t>(W, i1 - i));
      for (int64_t v = 0; v < c.registers; ++v) {
        Reg column[W];
        for (int n = 0; n < count; ++n) column[n] = S::load(c.x + (i + n) * c.stride + v * W);
        T* at = f_.grad_x + (model * in_.rows + row + v * W) * in_.in + i;
        store_columns<T>(at, in_.in, int(least<int64_t>(W, c.rows - v * W)), count, column);
      }
    }
  }

  void sum_range(const Chunk<T>& c, int64_t i0, int64_t i1, T* sums) const {
    constexpr int NI = SumTile<complex>::ins, NO = SumTile<complex>::outs;
    for (int64_t o = 0; o < in_.out; o += NO) {
      const int outs = int(least<int64_t>(NO, in_.out - o));
      for (int64_t i = i0; i < i1; i += NI) {
        const int ins = int(least<int64_t>(NI, i1 - i));
        bool negative = false;
        for (int a = 0; a < ins; ++a) negative |= c.negative[i + a];
        if (negative) sum_tile_of<T, complex, true>(ins, outs, in_, c, i, o, sums);
        else sum_tile_of<T, complex, false>(ins, outs, in_, c, i, o, sums);
      }
    }
  }

  // Adds the groups' sums in order and turns them into the gradients of one model.
  void finish(int64_t model, const T* partial, int64_t groups, const T* gate) const {
    const int64_t size = in_.out * in_.in, stride = sums_per_group() + in_.in;
    const T* wr = in_.weight_re + model * size;
    const T* wi = complex ? in_.weight_im + model * size : nullptr;
    T* grad_re = f_.grad_weight_re == nullptr ? nullptr : f_.grad_weight_re + model * size;
    T* grad_im = f_.grad_weight_im == nullptr ? nullptr : f_.grad_weight_im + model * size;
    Scratch<T> phase(in_.in);
    for (int64_t i = 0; i < in_.in; ++i) phase[i] = T(0);
    for (int64_t o = 0; want_sums_ && o < in_.out; ++o) {
      for (int64_t i = 0; i < in_.in; ++i) {
        const int64_t at = o * in_.in + i;
        T sum[4] = {};
        for (int64_t g = 0; g < groups; ++g)
          for (int part = 0; part < kParts<complex>; ++part) sum[part] += partial[g * stride + part * size + at];
        const T turn = T(kPi) * gate[i];
        if (grad_re != nullptr) grad_re[at] = sum[kSP] + turn * sum[kMQ];
        if (grad_im != nullptr) grad_im[at] = sum[kSQ] - turn * sum[kMP];
        phase[i] += wr[at] * sum[kMQ] - (complex ? wi[at] * sum[kMP] : T(0));
      }
    }
    if (f_.grad_gate == nullptr) return;
    for (int64_t i = 0; i < in_.in; ++i) {
      T grad = T(kPi) * phase[i];
      for (int64_t g = 0; g < groups; ++g) grad += partial[g * stride + kParts<complex> * size + i];
      const T raw = in_.gate[model * in_.in + i];
      const bool passes = f_.straight_through || (raw >= T(0) && raw <= T(1));
      f_.grad_gate[model * in_.in + i] = passes ? grad : T(0);
    }
  }

  const NpuBackward<T>& f_;
  const NpuInputs<T>& in_;
  const Parallel& parallel_;
  const bool want_spread_, want_sums_;
  int64_t groups_, group_rows_, chunk_rows_;
};

}  // namespace

template <typename T>
void npu_backward(const NpuBackward<T>& f, const Parallel& parallel) {
  if (f.inputs.weight_im != nullptr) Backward<T, true>(f, parallel).run();
  else Backward<T, false>(f, parallel).run();
}

template void npu_backward<float>(const NpuBackward<float>&, const Parallel&);
template void npu_backward<double>(const NpuBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
