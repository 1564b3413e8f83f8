// The backward of layers with many inputs: a register holds `width` inputs of one row, so that nothing is turned and no
// sum runs over lanes. A chunk keeps L, m, dP and dQ row by row; ranges of I are then independent.
#pragma once

#include "npu_backward.h"

namespace npu {
namespace NPU_ISA {
namespace wide {

// Register tiles. dL: rows x registers of inputs. Weight sums: outs x registers of inputs, two (RealNPU) or four each:
// all at once in 32 registers; in 16 the real products first, the mask products then.
#if defined(__AVX512F__)
constexpr int kSpreadRows = 12, kSpreadVectors = 2;
constexpr int kSumVectors = 2, kComplexOuts = 3, kRealOuts = 6;
#else
constexpr int kSpreadRows = 6, kSpreadVectors = 2;
constexpr int kSumVectors = 2, kComplexOuts = 3, kRealOuts = 6;
#endif
template <bool complex>
constexpr int kSumOuts = complex ? kComplexOuts : kRealOuts;
#if defined(__AVX512F__)
constexpr bool kAtOnce = true;
#define NPU_PASS NPU_INLINE
#else
constexpr bool kAtOnce = false;
#define NPU_PASS __attribute__((noinline))  // or the sums of one pass would keep registers from the other
#endif

// Rows that the weight sums of one tile run over before they are stored: more of them store less often, fewer stay
// closer (measured: 240). A multiple of every group size in simd.h.
constexpr int64_t kSumRows = 240;
// Rows that an accumulator of them takes up before it joins the tile's sums in memory: every addition of equal terms
// rounds the same way, so that errors grow with the length of a run. Twice as many where twice as many accumulators
// would join (measured). A multiple of every group size too.
#if defined(__AVX512F__)
constexpr int64_t kSumRun = 48;
#else
constexpr int64_t kSumRun = 24;
#endif

// From so many inputs on, mask products are looked up: the signs of a group of rows select one of all partial sums of
// these rows' dP (dQ). The tables of a few outs serve kSumIns inputs, whose L stays in the second-level cache.
constexpr int64_t kLookupIns = 64;
constexpr int64_t kSumIns = 256;
enum class Signs { kNone, kMasked, kLookup };
enum class Products { kReal, kMask, kBoth };

// Up to so many rows dL reads the weights as they lie: packing them would cost more than it gains.
constexpr int64_t kFewRows = 24;

template <typename T>
struct Chunk {
  int64_t rows, row;              // how many, and the first of all models' rows
  const T* x;                     // [rows][I]
  int64_t ins, outs;              // strides of a row: whole registers, odd in cache lines, so that rows share no sets
  T* log_r;                       // [rows][ins], zero behind I
  typename Simd<T>::Mask* mask;   // [rows][ins / width], or null and
  typename Simd<T>::Bits* index;  // [rows / group size][ins / width]: the masks of a group of rows as bits
  bool* negative;                 // [rows / kSumRows][ins / width]: any x < 0
  T *grad_p, *grad_q;             // [rows][outs]

  int64_t vectors() const { return ins / Simd<T>::width; }
};

template <typename T, bool complex>
class Group {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Mask = typename S::Mask;
  static constexpr int W = S::width;
  static constexpr int kBlock = kSpreadVectors * W;  // inputs of a packed block of weights
  static constexpr int kWeights = complex ? 2 : 1;
  static constexpr int kGroup = S::group_size > 0 ? S::group_size : 1;  // rows of a lookup
  static constexpr int kGroups = int(kSumRows) / kGroup;
  template <int N, int V>
  using TileSums = Reg[N][V][kParts<complex>];  // [outs][registers of inputs][Part]

 public:
  explicit Group(const NpuBackward<T>& f) : f_(f), in_(f.inputs) {}

  static constexpr bool kShares = true;
  static constexpr int64_t kSpan = 2048;
  // Where the rows are few enough for one pass of the weight sums.
  static bool writes_gradients(const NpuBackward<T>& f) { return f.inputs.rows <= kSumRows; }

  void run(const GroupTask<T>& task, const Parallel& inner) const {
    const int64_t size = in_.out * in_.in, blocks = ceil_div(in_.in, kBlock);
    if (task.sums != nullptr) std::memset(task.sums, 0, size_t(kParts<complex> * size) * sizeof(T));
    std::memset(task.phase_sums, 0, size_t(in_.in) * sizeof(T));
    Chunk<T> c;
    c.ins = padded(in_.in);
    c.outs = padded(in_.out);
    // 2 MiB of panels at most.
    const int64_t row_size = (c.ins + 2 * c.outs) * int64_t(sizeof(T));
    const int64_t chunk_rows = least<int64_t>(most<int64_t>(1, ceil_div(task.end - task.begin, kSumRows)),
                                              most<int64_t>(1, (int64_t(1) << 21) / row_size / kSumRows)) *
                               kSumRows;
    const bool packs = task.want_spread && task.end - task.begin > kFewRows;
    Scratch<T> packed(packs ? blocks * kBlock * in_.out * kWeights : 0);
    Scratch<T> log_r(chunk_rows * c.ins), grad_p(chunk_rows * c.outs), grad_q(chunk_rows * c.outs);
    const bool looks_up = S::group_size > 0 && in_.in >= kLookupIns;
    Scratch<bool> negative(chunk_rows / kSumRows * c.vectors());
    Scratch<Mask> mask(looks_up ? 0 : chunk_rows * c.vectors());
    Scratch<typename S::Bits> index(looks_up ? chunk_rows / kGroup * c.vectors() : 0);
    c.log_r = log_r, c.grad_p = grad_p, c.grad_q = grad_q, c.negative = negative;
    c.mask = looks_up ? nullptr : static_cast<Mask*>(mask);
    c.index = looks_up ? static_cast<typename S::Bits*>(index) : nullptr;
    if (packs) {
      inner.over(blocks, [&](int64_t begin, int64_t end) NPU_ONCE {
        for (int64_t block = begin; block < end; ++block) pack(task.model, block, packed);
      });
    }
    for (int64_t row = task.begin; row < task.end; row += chunk_rows) {
      c.rows = least(chunk_rows, task.end - row);
      c.row = task.model * in_.rows + row;
      c.x = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + row) * in_.in;
      inner.over(ceil_div(c.rows, kSumRows), [&](int64_t begin, int64_t end) NPU_ONCE {
        for (int64_t n = begin; n < end; ++n) prepare(task, c, n * kSumRows, least((n + 1) * kSumRows, c.rows));
      });
      inner.over(blocks, [&](int64_t begin, int64_t end) NPU_ONCE {
        for (int64_t block = begin; block < end; ++block) {
          const int64_t i0 = block * kBlock, i1 = least(i0 + kBlock, in_.in);
          if (packs) spread<true>(task, c, i0, i1, packed + i0 * in_.out * kWeights);
          else if (task.want_spread) spread<false>(task, c, i0, i1, nullptr);
        }
        const int64_t last = least(end * kBlock, in_.in);
        for (int64_t i = begin * kBlock; task.want_sums && i < last; i += kSumIns)
          sum(task, c, i, least(i + kSumIns, last));
      });
    }
  }

 private:
  static int64_t padded(int64_t features) {
    const int64_t line = 64 / int64_t(sizeof(T)), lines = ceil_div(ceil_div(features, W) * W, line);
    return (lines | 1) * line;
  }

  // Weights for dL: [I / kBlock][O][wr of kBlock inputs, wi], zeros behind I.
  void pack(int64_t model, int64_t block, T* packed) const {
    const int64_t i0 = block * kBlock, count = least<int64_t>(kBlock, in_.in - i0);
    T* w = packed + i0 * in_.out * kWeights;
    for (int64_t o = 0; o < in_.out; ++o) {
      const int64_t at = (model * in_.out + o) * in_.in + i0;
      for (int part = 0; part < kWeights; ++part, w += kBlock) {
        std::memcpy(w, (part ? in_.weight_im : in_.weight_re) + at, size_t(count) * sizeof(T));
        for (int64_t i = count; i < kBlock; ++i) w[i] = T(0);
      }
    }
  }

  // L, m, dP and dQ of rows [begin, end), which are one kSumRows block of the chunk.
  void prepare(const GroupTask<T>& task, const Chunk<T>& c, int64_t begin, int64_t end) const {
    const Reg eps = S::set1(in_.eps), one = S::set1(T(1));
    for (int64_t i = 0; i < c.ins; i += W) {
      const int count = int(most<int64_t>(0, least<int64_t>(W, in_.in - i)));
      const Reg g = S::load_first(task.gate + i, count);  // zero behind I: r = 1, L = 0
      const Reg rest = one - g;
      const auto log = [&](int64_t b) __attribute__((always_inline)) {
        const Reg x = S::load_first(c.x + b * in_.in + i, count);
        S::store(c.log_r + b * c.ins + i, VectorMath<T>::log(S::fma(g, S::abs(x) + eps, rest)));
        return x;
      };
      bool& negative = c.negative[begin / kSumRows * c.vectors() + i / W];
      if (c.index == nullptr) {
        negative = false;
        for (int64_t b = begin; b < end; ++b) negative |= S::store_negative(c.mask + b * c.vectors() + i / W, log(b));
        continue;
      }
      typename S::Bits any = {};
      typename S::Bits* index = c.index + begin / kGroup * c.vectors() + i / W;
      for (int64_t b = begin; b < end; index += c.vectors()) {
        typename S::Bits marks = {};
        for (int r = 0; r < kGroup && b < end; ++r, ++b) marks = S::mark_negative(marks, log(b), r);
        *index = marks;
        any |= marks;
      }
      negative = S::any_mark(any);
    }
    for (int64_t b = begin; b < end; ++b) {
      const int64_t from = (c.row + b) * in_.out;
      for (int64_t o = 0; o < in_.out; o += W) {
        const int count = int(least<int64_t>(W, in_.out - o));
        const Reg grad_y = S::load_first(f_.grad_y + from + o, count);
        S::store(c.grad_p + b * c.outs + o, grad_y * S::load_first(f_.y + from + o, count));
        S::store(c.grad_q + b * c.outs + o, -grad_y * S::load_first(f_.s + from + o, count));
      }
    }
  }

  // dL = dP Wr + dQ Wi of the inputs [i0, i1), and from it dx and the gate's sums: those of a tile's rows join a run of
  // some kRun rows, and the runs the total, for the rounding errors' sake.
  template <bool packs>
  void spread(const GroupTask<T>& task, const Chunk<T>& c, int64_t i0, int64_t i1, const T* w) const {
    const bool both = i1 - i0 > W;  // registers of inputs
    T run[kBlock] = {};
    int64_t in_run = 0;
    for (int64_t b = 0; b < c.rows;) {
      const int64_t left = c.rows - b, rows = left >= kSpreadRows ? kSpreadRows : (left >= 3 ? 3 : 1);
      if (rows == kSpreadRows) spread_rows<packs, kSpreadRows>(task, c, b, i0, i1, w, both, run);
      else if (rows == 3) spread_rows<packs, 3>(task, c, b, i0, i1, w, both, run);
      else spread_rows<packs, 1>(task, c, b, i0, i1, w, both, run);
      b += rows;
      in_run += rows;
      if (in_run < kRun && b < c.rows) continue;
      for (int64_t i = i0; i < i1; ++i) task.gate_sums[i] += double(run[i - i0]);
      std::memset(run, 0, sizeof run);
      in_run = 0;
    }
  }

  template <bool packs, int R>
  void spread_rows(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int64_t i0, int64_t i1, const T* w,
                   bool both, T* gate_run) const {
    if (both) spread_tile<packs, R, kSpreadVectors>(task, c, b, i0, i1, w, gate_run);
    else spread_tile<packs, R, 1>(task, c, b, i0, i1, w, gate_run);
  }

  template <bool packs, int R, int V>
  void spread_tile(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int64_t i0, int64_t i1, const T* w,
                   T* gate_run) const {
    Reg dl[R][V] = {};
    int64_t o = 0;
    const T *grad_p = c.grad_p + b * c.outs, *grad_q = c.grad_q + b * c.outs;
    while (o < in_.out) {
      Reg run[R][V] = {};
      for (const int64_t end = least(o + kRun, in_.out); o < end; ++o) {
        const auto add = [&](const T* grad, const T* weight, int part) __attribute__((always_inline)) {
          Reg factor[V];
          for (int v = 0; v < V; ++v) {
            if constexpr (packs) {
              factor[v] = S::load(w + (o * kWeights + part) * kBlock + v * W);
            } else {
              const int64_t at = (task.model * in_.out + o) * in_.in + i0 + v * W;
              factor[v] = S::load_first(weight + at, int(least<int64_t>(W, i1 - i0 - v * W)));
            }
          }
          for (int r = 0; r < R; ++r) {
            const Reg d = S::set1(grad[r * c.outs + o]);
            for (int v = 0; v < V; ++v) run[r][v] = S::fma(d, factor[v], run[r][v]);
          }
        };
        add(grad_p, in_.weight_re, 0);
        if constexpr (complex) add(grad_q, in_.weight_im, 1);
      }
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) dl[r][v] = dl[r][v] + run[r][v];
    }
    finish_rows(task, c, b, R, V, i0, i1, &dl[0][0], gate_run);
  }

  // dx and the gate's sums of a tile's dL ``[rows][vectors]``.
  __attribute__((noinline)) void finish_rows(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int rows,
                                             int vectors, int64_t i0, int64_t i1, const Reg* dl, T* gate_run) const {
    const Reg one = S::set1(T(1)), eps = S::set1(in_.eps);
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = i0 + v * W;
      const int count = int(least<int64_t>(W, i1 - i));
      const Reg g = S::load_first(task.gate + i, count);
      Reg gate_sum = S::zero();
      for (int r = 0; r < rows; ++r) {
        const Reg x = S::load_first(c.x + (b + r) * in_.in + i, count);
        const Reg dx = spread_to_x<T>(dl[r * vectors + v], x, g, one, eps, &gate_sum);
        if (f_.grad_x != nullptr) S::store_first(f_.grad_x + (c.row + b + r) * in_.in + i, dx, count);
      }
      S::store(gate_run + v * W, S::load(gate_run + v * W) + gate_sum);
    }
  }

  // The weight sums of the inputs [i0, i1).
  void sum(const GroupTask<T>& task, const Chunk<T>& c, int64_t i0, int64_t i1) const {
    for (int64_t b = 0; b < c.rows; b += kSumRows) {
      const int64_t end = least(b + kSumRows, c.rows);
      if (c.index != nullptr) sum_by_lookup(task, c, b, end, i0, i1);
      else sum_by_masks(task, c, b, end, i0, i1);
    }
  }

  // Whether any input of the registers from i on is negative in the kSumRows block from row b on.
  bool negative(const Chunk<T>& c, int64_t b, int64_t i, int vectors) const {
    bool any = false;
    for (int v = 0; v < vectors; ++v) any |= c.negative[b / kSumRows * c.vectors() + i / W + v];
    return any;
  }

  // Inputs outside, outs inside: the rows' L stays in the first-level cache.
  void sum_by_masks(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int64_t end, int64_t i0, int64_t i1) const {
    for (int64_t i = i0; i < i1; i += kSumVectors * W) {
      const int vectors = int(least<int64_t>(kSumVectors, ceil_div(i1 - i, W)));
      const Signs signs = negative(c, b, i, vectors) ? Signs::kMasked : Signs::kNone;
      for (int64_t o = 0; o < in_.out;) o += sum_tile_of(task, c, b, end, i, i1, o, vectors, signs, nullptr);
    }
  }

  // Outs outside, inputs inside: the outs' tables stay there.
  void sum_by_lookup(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int64_t end, int64_t i0,
                     int64_t i1) const {
    constexpr int N = kSumOuts<complex>;
    alignas(64) T tables[N * kGroups * 2 * W];
    const bool any = negative(c, b, i0, int(ceil_div(i1 - i0, W)));
    for (int64_t o = 0; o < in_.out;) {
      const int outs = o + N <= in_.out ? N : 1;
      if (any) {
        for (int64_t g = b; g < end; g += kGroup) {
          const int rows = int(least<int64_t>(kGroup, end - g));
          T* table = tables + (g - b) / kGroup * outs * 2 * W;
          for (int n = 0; n < outs; ++n, table += 2 * W) {
            const int64_t at = g * c.outs + o + n;
            S::store(table, S::partial_sums(c.grad_q + at, c.outs, rows));
            if constexpr (complex) S::store(table + W, S::partial_sums(c.grad_p + at, c.outs, rows));
          }
        }
      }
      for (int64_t i = i0; i < i1; i += kSumVectors * W) {
        const int vectors = int(least<int64_t>(kSumVectors, ceil_div(i1 - i, W)));
        const Signs signs = negative(c, b, i, vectors) ? Signs::kLookup : Signs::kNone;
        sum_tile_of(task, c, b, end, i, i1, o, vectors, signs, tables);
      }
      o += outs;
    }
  }

  // Returns how many outs the tile had: a whole tile's, or 1 behind the last whole one.
  int sum_tile_of(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int64_t end, int64_t i, int64_t i1, int64_t o,
                  int vectors, Signs signs, const T* tables) const {
    constexpr int N = kSumOuts<complex>;
    const auto run = [&](auto outs, auto registers) __attribute__((always_inline)) {
      constexpr int n = decltype(outs)::value, v = decltype(registers)::value;
      if (signs == Signs::kNone) sum_tile<Signs::kNone, n, v>(task, c, b, end, i, i1, o, tables);
      else if (signs == Signs::kMasked) sum_tile<Signs::kMasked, n, v>(task, c, b, end, i, i1, o, tables);
      else if constexpr (S::group_size > 0) sum_tile<Signs::kLookup, n, v>(task, c, b, end, i, i1, o, tables);
      return n;
    };
    using One = std::integral_constant<int, 1>;
    using Whole = std::integral_constant<int, N>;
    using Vectors = std::integral_constant<int, kSumVectors>;
    if (o + N <= in_.out) return vectors == 1 ? run(Whole{}, One{}) : run(Whole{}, Vectors{});
    return vectors == 1 ? run(One{}, One{}) : run(One{}, Vectors{});
  }

  template <Signs signs, int N, int V>
  void sum_tile(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int64_t end, int64_t i, int64_t i1, int64_t o,
                const T* tables) const {
    TileSums<N, V> sums = {};
    // They come from memory while the rows are added up.
    for (int n = 0; task.sums != nullptr && n < N; ++n)
      for (int part = 0; part < kParts<complex>; ++part)
        for (int v = 0; v < V; ++v) __builtin_prefetch(task.sums + (part * in_.out + o + n) * in_.in + i + v * W, 1);
    if constexpr (kAtOnce || signs == Signs::kNone) {
      add_rows<Products::kBoth, signs, N, V>(c, b, end, i, o, tables, sums);
    } else {
      add_rows<Products::kReal, signs, N, V>(c, b, end, i, o, tables, sums);
      add_rows<Products::kMask, signs, N, V>(c, b, end, i, o, tables, sums);
    }
    finish_sums(task, signs, N, V, i, i1, o, &sums[0][0][0]);
  }

  // Stores a tile's sums ``[outs][vectors][part]``, or the gradients that they become.
  __attribute__((noinline)) void finish_sums(const GroupTask<T>& task, Signs signs, int outs, int vectors, int64_t i,
                                             int64_t i1, int64_t o, const Reg* sum) const {
    for (int n = 0; n < outs; ++n) {
      for (int v = 0; v < vectors; ++v, sum += kParts<complex>) {
        const int count = int(least<int64_t>(W, i1 - i - v * W));
        const int64_t at = (o + n) * in_.in + i + v * W;
        if (task.sums == nullptr) {
          const Reg gate = S::load_first(task.gate + i + v * W, count);
          weight_gradients<T, complex>(f_, task.model * in_.out * in_.in + at, count, gate, sum,
                                       task.phase_sums + i + v * W);
          continue;
        }
        for (int part = 0; part < kParts<complex>; ++part) {
          if (signs == Signs::kNone && (part == kMQ || part == kMP)) continue;
          T* to = task.sums + part * in_.out * in_.in + at;
          S::store_first(to, S::load_first(to, count) + sum[part], count);
        }
      }
    }
  }

  // A tile's real products, its mask products, or both, in one pass over rows [b, end).
  template <Products products, Signs signs, int N, int V>
  NPU_PASS void add_rows(const Chunk<T>& c, int64_t b, int64_t end, int64_t i, int64_t o, const T* tables,
                         TileSums<N, V>& sums) const {
    constexpr bool reals = products != Products::kMask, masks = products != Products::kReal;
    constexpr bool masked = masks && signs == Signs::kMasked, looked_up = masks && signs == Signs::kLookup;
    const T *log_r = c.log_r + b * c.ins + i, *grad_p = c.grad_p + b * c.outs + o, *grad_q = c.grad_q + b * c.outs + o;
    const Mask* mask = masked ? c.mask + b * c.vectors() + i / W : nullptr;
    const typename S::Bits* index = looked_up ? c.index + b / kGroup * c.vectors() + i / W : nullptr;
    while (b < end) {
      const int64_t run_end = least(b + kSumRun, end);
      Reg sp[N][V] = {}, sq[N][V] = {}, mp[N][V] = {}, mq[N][V] = {};
      const auto add_row = [&]() __attribute__((always_inline)) {
        Reg l[V];
        for (int v = 0; reals && v < V; ++v) l[v] = S::load(log_r + v * W);
        for (int n = 0; n < N; ++n) {
          if constexpr (reals || (complex && masked)) {
            const Reg dp = S::set1(grad_p[n]);
            for (int v = 0; reals && v < V; ++v) sp[n][v] = S::fma(dp, l[v], sp[n][v]);
            for (int v = 0; complex && masked && v < V; ++v) mp[n][v] = S::add_masked(mp[n][v], mask[v], dp);
          }
          if constexpr ((complex && reals) || masked) {
            const Reg dq = S::set1(grad_q[n]);
            for (int v = 0; complex && reals && v < V; ++v) sq[n][v] = S::fma(dq, l[v], sq[n][v]);
            for (int v = 0; masked && v < V; ++v) mq[n][v] = S::add_masked(mq[n][v], mask[v], dq);
          }
        }
        log_r += c.ins, grad_p += c.outs, grad_q += c.outs;
        if constexpr (masked) mask += c.vectors();
      };
      const auto add_group = [&]() __attribute__((always_inline)) {
        for (int n = 0; n < N; ++n, tables += 2 * W) {
          for (int v = 0; v < V; ++v) mq[n][v] = mq[n][v] + S::lookup(S::load(tables), index[v]);
          for (int v = 0; complex && v < V; ++v) mp[n][v] = mp[n][v] + S::lookup(S::load(tables + W), index[v]);
        }
        index += c.vectors();
      };
      if constexpr (looked_up) {
        for (; b + kGroup <= run_end; b += kGroup) {
          for (int r = 0; reals && r < kGroup; ++r) add_row();
          add_group();
        }
        if (b < run_end) {
          for (; reals && b < run_end; ++b) add_row();
          add_group();
        }
      } else {
        for (; b < run_end; ++b) add_row();
      }
      b = run_end;
      for (int n = 0; n < N; ++n) {
        for (int v = 0; v < V; ++v) {
          Reg* sum = sums[n][v];
          if constexpr (reals) sum[kSP] = sum[kSP] + sp[n][v];
          if constexpr (reals && complex) sum[kSQ] = sum[kSQ] + sq[n][v];
          if constexpr (masks) sum[kMQ] = sum[kMQ] + mq[n][v];
          if constexpr (masks && complex) sum[kMP] = sum[kMP] + mp[n][v];
        }
      }
    }
  }

  const NpuBackward<T>& f_;
  const NpuInputs<T>& in_;
};

}  // namespace wide
}  // namespace NPU_ISA
}  // namespace npu
