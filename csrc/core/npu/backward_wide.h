// The backward of layers with many inputs, by the formulas of npu/backward.cpp: a register holds `width` inputs of one
// row, so that nothing is transposed and no sum runs over lanes. A chunk of rows becomes panels
// (npu/backward_panels.h); ranges of I are then independent.
#pragma once

#include "npu/backward_panels.h"

namespace npu {
namespace NPU_ISA {
namespace wide {

// Register tiles. dL: kSpreadRows rows x a block of inputs, or kSpreadRest of those that are left. Weight sums: a tile
// of outputs x a block of inputs, two (RealNPU) or four sums each: all at once in 32 registers; in 16 the real products
// first, the mask products then.
#if defined(__AVX512F__)
constexpr int kSpreadRows = 12;
constexpr bool kAtOnce = true;
#define NPU_PASS NPU_INLINE
#else
constexpr int kSpreadRows = 6;
constexpr bool kAtOnce = false;
#define NPU_PASS __attribute__((noinline))  // or the sums of one pass would keep registers from the other
#endif

constexpr int kSpreadRest = 4;

// The rows of the weight sums come in runs of so many, for so many blocks after another: what these share, the tables
// and dP and dQ of a tile, stays in the first-level cache, their L in the second.
constexpr int64_t kTableRows = 96;
constexpr int kSumBlocks = 8;
// Rows that an accumulator takes up before it joins the tile's sums: every addition of equal terms rounds the same way,
// so that errors grow with the length of a run. More where more accumulators would join (measured).
#if defined(__AVX512F__)
constexpr int64_t kSumRun = 96;
#else
constexpr int64_t kSumRun = 48;
#endif
// kSumRun is a multiple of every group size in simd/simd.h too.
static_assert(kSumRows % kTableRows == 0 && kTableRows % kSumRun == 0);

// Outputs that an accumulator of dL takes up: shorter runs cost time and have no smaller errors. Whole tiles of them.
constexpr int64_t kSpreadRun = 66;
static_assert(kSpreadRun % kSumOutputs<true> == 0 && kSpreadRun % kSumOutputs<false> == 0);

// Mask products from tables in memory are made for so many outputs at a time, and of the sums of so many rows. Whole
// tiles and registers of outputs.
constexpr int kTableOutputs = 24;
constexpr int64_t kRowsOfTables = 72;
constexpr int kTableInputs = 4;  // whose sums are in registers

enum class Signs { kNone, kMasked, kLookup };
enum class Products { kReal, kMask, kBoth };

// Up to so many rows dL reads the weights as they lie: packing them would cost more than it gains.
constexpr int64_t kFewRows = 24;

template <typename T, bool complex>
class Group {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Mask = typename S::Mask;
  using Panels = Chunk<T, complex>;
  static constexpr int W = S::width;
  static constexpr int kBlock = Panels::kBlock, kOutputs = Panels::kOutputs;
  static constexpr int kGrads = Panels::kGrads, kGroup = Panels::kGroup;
  static constexpr int kWeights = complex ? 2 : 1;
  using TileSums = Reg[kOutputs][kVectors][kParts<complex>];
  static constexpr int kTileSums = kOutputs * kBlock * kParts<complex>;
  static constexpr int kMaskStep = kSumBlocks * kBlock;  // inputs
  static_assert(!kOutputsAsLanes || (kTableOutputs % kOutputs == 0 && kTableOutputs % W == 0 &&
                                     kRowsOfTables % kGroup == 0 && kSumRows % kRowsOfTables == 0));

 public:
  // [tiles of outputs][blocks of inputs][a tile's sums]: those of a tile and a block lie beside each other.
  struct Order {
    static int64_t size(const NpuInputs<T>& in) {
      return ceil_div(in.out, kOutputs) * ceil_div(in.in, kBlock) * kTileSums;
    }
    static int64_t tile_at(const NpuInputs<T>& in, int64_t tile, int64_t block) {
      return (tile * ceil_div(in.in, kBlock) + block) * kTileSums;
    }
    static int64_t at(const NpuInputs<T>& in, int part, int64_t o, int64_t i) {
      const int64_t within = (o % kOutputs * kVectors + i % kBlock / W) * kParts<complex> + part;
      return tile_at(in, o / kOutputs, i / kBlock) + within * W;
    }
  };

  explicit Group(const NpuBackward<T>& f) : f_(f), in_(f.inputs) {}

  static constexpr bool kShares = true;
  static constexpr int64_t kSpan = 2048;
  // Where the rows are few enough for one pass of the weight sums.
  static bool writes_gradients(const NpuBackward<T>& f) { return f.inputs.rows <= Panels::sum_rows(f.inputs); }

  // The work has two parts for each block of inputs: part 2 n is the weight sums of the n-th one, part 2 n + 1 its dL.
  // Each thread makes dP and dQ anew: to fetch them from another core would take as long.
  void run(const GroupTask<T>& task, const Parallel& inner) const {
    std::memset(task.phase_sums, 0, size_t(in_.in) * sizeof(T));
    const int64_t threads = min<int64_t>(inner.threads, 2 * ceil_div(in_.in, kBlock));
    inner.over(threads, [&](int64_t begin, int64_t end)
                            NPU_ONCE { run_parts(task, first_part(begin, threads), first_part(end, threads)); });
  }

 private:
  // Where the share of a thread begins: the weight sums of a block take twice as long as its dL.
  int64_t first_part(int64_t thread, int64_t threads) const {
    if (thread == threads) return 2 * ceil_div(in_.in, kBlock);
    const int64_t vectors = ceil_div(in_.in, W), work = 3 * vectors * thread / threads;
    const int64_t block = work / (3 * kVectors), in_block = min<int64_t>(kVectors, vectors - block * kVectors);
    const int64_t behind = work - block * 3 * kVectors;
    return 2 * block + (behind >= in_block) + (2 * behind >= 5 * in_block);
  }

  void run_parts(const GroupTask<T>& task, int64_t begin, int64_t end) const {
    const int64_t first_sum = ceil_div(begin, 2), last_sum = ceil_div(end, 2), first = begin / 2, last = end / 2;
    const int64_t packed_size = kBlock * in_.out * kWeights, rows = task.end - task.begin;
    const bool packs = task.want_spread && rows > kFewRows;
    Panels c(f_, rows);
    Scratch<T> packed(packs ? (last - first) * packed_size : 0);
    for (int64_t block = first; packs && block < last; ++block)
      pack(task.model, block, packed + (block - first) * packed_size);
    for (int64_t row = task.begin; row < task.end; row += c.room()) {
      c.begin(task, row);
      for (int64_t b = 0; b < c.rows(); b += kSumRows)
        c.prepare(task, b, min(b + kSumRows, c.rows()), first_sum, task.want_sums ? last_sum : first_sum);
      for (int64_t block = first; block < last; ++block) {
        if (packs) spread<true>(task, c, block, packed + (block - first) * packed_size);
        else if (task.want_spread) spread<false>(task, c, block, nullptr);
      }
      if (task.want_sums) sum(task, c, first_sum, last_sum);
    }
  }

  // The weights of a block for dL: [O][wr of kBlock inputs, wi], zeros behind I.
  void pack(int64_t model, int64_t block, T* w) const {
    const int64_t i0 = block * kBlock, count = min<int64_t>(kBlock, in_.in - i0);
    for (int64_t o = 0; o < in_.out; ++o) {
      const int64_t at = (model * in_.out + o) * in_.in + i0;
      for (int part = 0; part < kWeights; ++part, w += kBlock) {
        std::memcpy(w, (part ? in_.weight_im : in_.weight_re) + at, size_t(count) * sizeof(T));
        for (int64_t i = count; i < kBlock; ++i) w[i] = T(0);
      }
    }
  }

  // dL = dP Wr + dQ Wi of a block of inputs, and from it dx and the gate's sums: those of a tile's rows join a run of
  // some kRun rows, and the runs the total, for the rounding errors' sake.
  template <bool packs>
  void spread(const GroupTask<T>& task, const Panels& c, int64_t block, const T* w) const {
    const int64_t i0 = block * kBlock, i1 = min(i0 + kBlock, in_.in);
    T run[kBlock] = {};
    int64_t in_run = 0;
    for (int64_t b = 0; b < c.rows();) {
      const int64_t left = c.rows() - b,
                    rows = left >= kSpreadRows ? kSpreadRows : (left >= kSpreadRest ? kSpreadRest : 1);
      if (rows == kSpreadRows) spread_some<packs, kSpreadRows>(task, c, b, i0, i1, w, run);
      else if (rows == kSpreadRest) spread_some<packs, kSpreadRest>(task, c, b, i0, i1, w, run);
      else spread_some<packs, 1>(task, c, b, i0, i1, w, run);
      b += rows;
      in_run += rows;
      if (in_run < kRun && b < c.rows()) continue;
      for (int64_t i = i0; i < i1; ++i) task.gate_sums[i] += double(run[i - i0]);
      std::memset(run, 0, sizeof run);
      in_run = 0;
    }
  }

  template <bool packs, int R>
  void spread_some(const GroupTask<T>& task, const Panels& c, int64_t b, int64_t i0, int64_t i1, const T* w,
                   T* gate_run) const {
    if (i1 - i0 > W) spread_tile<packs, R, kVectors>(task, c, b, i0, i1, w, gate_run);
    else spread_tile<packs, R, 1>(task, c, b, i0, i1, w, gate_run);
  }

  template <bool packs, int R, int V>
  void spread_tile(const GroupTask<T>& task, const Panels& c, int64_t b, int64_t i0, int64_t i1, const T* w,
                   T* gate_run) const {
    Reg dl[R][V] = {};
    // What finish_rows reads and writes comes near meanwhile.
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) {
        __builtin_prefetch(c.x(b + r, i0 + v * W));
        if (f_.grad_x != nullptr) __builtin_prefetch(f_.grad_x + c.row(b + r) * in_.in + i0 + v * W, 1);
      }
    }
    const T* grad = c.grads(0, b);
    int64_t o = 0;
    while (o < in_.out) {
      Reg run[R][V] = {};
      // The n-th out of the tile of outputs that o begins.
      const auto add = [&](int n) __attribute__((always_inline)) {
        for (int part = 0; part < kWeights; ++part) {
          Reg factor[V];
          for (int v = 0; v < V; ++v) {
            if constexpr (packs) {
              factor[v] = S::load(w + ((o + n) * kWeights + part) * kBlock + v * W);
            } else {
              const int64_t at = (task.model * in_.out + o + n) * in_.in + i0 + v * W;
              factor[v] =
                  S::load_first((part ? in_.weight_im : in_.weight_re) + at, int(min<int64_t>(W, i1 - i0 - v * W)));
            }
          }
          for (int r = 0; r < R; ++r) {
            const Reg d = S::set1(grad[r * kGrads + part * kOutputs + n]);
            for (int v = 0; v < V; ++v) S::accumulate(run[r][v], d, factor[v]);
          }
        }
      };
      const int64_t end = min(o + kSpreadRun, in_.out);
      for (; o + kOutputs <= end; o += kOutputs, grad += c.room() * kGrads)
        for (int n = 0; n < kOutputs; ++n) add(n);
      for (int n = 0; n < end - o; ++n) add(n);
      o = end;
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) dl[r][v] = dl[r][v] + run[r][v];
    }
    finish_rows(task, c, b, R, V, i0, i1, &dl[0][0], gate_run);
  }

  // dx and the gate's sums of a tile's dL ``[rows][vectors]``.
  NPU_NOINLINE void finish_rows(const GroupTask<T>& task, const Panels& c, int64_t b, int rows, int vectors, int64_t i0,
                                int64_t i1, const Reg* dl, T* gate_run) const {
    // Read once: the compiler thinks that a store could change them.
    const int64_t step = in_.in;
    const T* x_row = c.x(b, i0);
    T* grad_row = f_.grad_x == nullptr ? nullptr : f_.grad_x + c.row(b) * step + i0;
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = i0 + v * W;
      const int count = int(min<int64_t>(W, i1 - i));
      const Gate<T> gate(S::load_first(task.gate + i, count), S::set1(in_.eps));
      Reg gate_sum = S::zero();
      for (int r = 0; r < rows; ++r) {
        const Reg x = S::load_first(x_row + r * step + v * W, count);
        const Reg dx = gate.spread(dl[r * vectors + v], x, &gate_sum);
        if (grad_row != nullptr) S::store_first(grad_row + r * step + v * W, dx, count);
      }
      S::store(gate_run + v * W, S::load(gate_run + v * W) + gate_sum);
    }
  }

  // The weight sums of the blocks of inputs [first, last): a tile of outputs after the other, of some blocks at a time.
  void sum(const GroupTask<T>& task, const Panels& c, int64_t first, int64_t last) const {
    alignas(64) T tables[S::group_size > 0 && !kOutputsAsLanes ? kOutputs * (kTableRows / kGroup) * 2 * W : 1];
    alignas(64) T masks[kOutputsAsLanes ? kWeights * kTableOutputs * kMaskStep : 1];
    const int64_t sum_rows = Panels::sum_rows(in_);
    for (int64_t b = 0; b < c.rows(); b += sum_rows) {
      const int64_t end = min(b + sum_rows, c.rows());
      for (int64_t block = first; block < last; block += kSumBlocks) {
        const int64_t blocks = min<int64_t>(kSumBlocks, last - block);
        const bool looks_up = c.looks_up() && any_negative(c, b, end, block, blocks);
        for (int64_t tile = 0; tile * kOutputs < in_.out; ++tile) {
          const int64_t o = tile * kOutputs % kTableOutputs;
          if constexpr (kOutputsAsLanes)
            if (looks_up && o == 0) sum_masks(c, b, end, block, blocks, tile * kOutputs, masks);
          TileSums sums[kSumBlocks];
          std::memset(sums, 0, size_t(blocks) * sizeof(TileSums));
          for (int64_t row = b; row < end; row += kTableRows) {
            const int64_t row_end = min(row + kTableRows, end);
            const bool last_rows = row_end == end;
            if (looks_up && !kOutputsAsLanes) fill_lookups(c, row, row_end, tile, tables);
            if (last_rows) fetch_sums(task, block, tile);
            for (int64_t n = 0; n < blocks; ++n) {
              if (last_rows && n + 1 < blocks) fetch_sums(task, block + n + 1, tile);
              add_rows_of(signs(c, b, end, block + n), c, row, row_end, block + n, tile, tables, sums[n]);
              if constexpr (kOutputsAsLanes)
                if (looks_up && last_rows) load_masks(masks + n * kBlock, o, sums[n]);
              if (last_rows) finish_sums(task, c.first() && b == 0, block + n, tile, sums[n]);
            }
          }
        }
      }
    }
  }

  // The mask sums of the outputs [first, first + kTableOutputs) and of some blocks of inputs over rows [b, end):
  // [of dQ, of dP][outputs][kMaskStep inputs]. A register holds outputs meanwhile.
  void sum_masks(const Panels& c, int64_t b, int64_t end, int64_t block, int64_t blocks, int64_t first,
                 T* masks) const {
    using Tables = typename Panels::Tables;
    alignas(64) T tables[kRowsOfTables / kGroup * Tables::size], sums[kMaskStep * Tables::entry];
    for (int64_t o = first; o < min(first + kTableOutputs, in_.out); o += W) {
      std::memset(sums, 0, size_t(blocks * kBlock * Tables::entry) * sizeof(T));
      for (int64_t row = b; row < end; row += kRowsOfTables) {
        const int64_t rows = min(kRowsOfTables, end - row);
        fill_tables(c, row, rows, o, tables);
        for (int64_t n = 0; n < blocks; ++n) {
          if (!c.negative(block + n, row)) continue;
          const int64_t inputs = min<int64_t>(kBlock, round_up(in_.in - (block + n) * kBlock, W));
          for (int64_t i = 0; i < inputs; i += kTableInputs)
            add_entries(c.index(block + n, row) + i, ceil_div(rows, kGroup), tables,
                        sums + (n * kBlock + i) * Tables::entry);
        }
      }
      for (int64_t i = 0; i < blocks * kBlock; i += W) {
        for (int part = 0; part < kWeights; ++part) {
          Reg column[W];
          for (int n = 0; n < W; ++n) column[n] = S::load(sums + (i + n) * Tables::entry + part * W);
          S::transpose(column);
          for (int n = 0; n < W; ++n)
            S::store(masks + (part * kTableOutputs + o - first + n) * kMaskStep + i, column[n]);
        }
      }
    }
  }

  // The tables of dQ and dP of some rows, of a register of outputs from o on.
  void fill_tables(const Panels& c, int64_t b, int64_t rows, int64_t o, T* tables) const {
    using Tables = typename Panels::Tables;
    const int count = int(min<int64_t>(W, in_.out - o));
    const int64_t at = c.row(b) * in_.out + o, left = in_.models * in_.rows * in_.out - at;
    const auto load = [&](const T* p, int64_t row) __attribute__((always_inline)) {
      p += at + row * in_.out;
      return row * in_.out + W <= left ? S::load(p) : S::load_first(p, count);
    };
    for (int64_t r = 0; r < rows; r += kGroup, tables += Tables::size) {
      const int group = int(min<int64_t>(kGroup, rows - r));
      Reg p[kGroup], q[kGroup];
      for (int n = 0; n < group; ++n) {
        const Reg grad_y = load(f_.grad_y, r + n);
        p[n] = grad_y * load(f_.y, r + n);
        q[n] = -grad_y * load(f_.s, r + n);
      }
      Tables::fill(tables, group, [&](int n) __attribute__((always_inline)) { return q[n]; });
      if constexpr (complex)
        Tables::fill(tables + W, group, [&](int n) __attribute__((always_inline)) { return p[n]; });
    }
  }

  // Adds the entries of some inputs and groups of rows.
  static NPU_NOINLINE void add_entries(const typename Panels::Index* offsets, int64_t groups, const T* tables, T* to) {
    using Tables = typename Panels::Tables;
    Reg sums[kTableInputs][kWeights];
    for (int n = 0; n < kTableInputs; ++n)
      for (int part = 0; part < kWeights; ++part) sums[n][part] = S::load(to + n * Tables::entry + part * W);
    for (int64_t g = 0; g < groups; ++g, offsets += Panels::kIndices, tables += Tables::size) {
      for (int n = 0; n < kTableInputs; ++n) {
        const T* const entry = tables + offsets[n];
        for (int part = 0; part < kWeights; ++part) sums[n][part] = sums[n][part] + S::load(entry + part * W);
      }
    }
    for (int n = 0; n < kTableInputs; ++n)
      for (int part = 0; part < kWeights; ++part) S::store(to + n * Tables::entry + part * W, sums[n][part]);
  }

  // The mask sums of a tile, whose outputs begin with the o-th of `masks`.
  static void load_masks(const T* masks, int64_t o, TileSums& sums) {
    for (int n = 0; n < kOutputs; ++n) {
      for (int v = 0; v < kVectors; ++v) {
        sums[n][v][kMQ] = S::load(masks + (o + n) * kMaskStep + v * W);
        if constexpr (complex) sums[n][v][kMP] = S::load(masks + (kTableOutputs + o + n) * kMaskStep + v * W);
      }
    }
  }

  static bool any_negative(const Panels& c, int64_t b, int64_t end, int64_t block, int64_t blocks) {
    bool any = false;
    for (; b < end; b += kSumRows)
      for (int64_t n = 0; n < blocks; ++n) any |= c.negative(block + n, b);
    return any;
  }
  // How a block's mask products are made in the pass over its rows.
  static Signs signs(const Panels& c, int64_t b, int64_t end, int64_t block) {
    if ((kOutputsAsLanes && c.looks_up()) || !any_negative(c, b, end, block, 1)) return Signs::kNone;
    return c.looks_up() ? Signs::kLookup : Signs::kMasked;
  }

  // The partial sums of every group of rows from b to the one with `end`: [groups][outputs][of dQ, of dP]. Sums with
  // rows behind the last one, which may be anything, are never looked up.
  static void fill_lookups(const Panels& c, int64_t b, int64_t end, int64_t tile, T* table) {
    const T* grad = c.grads(tile, b);
    for (; b < end; b += kGroup, grad += kGroup * kGrads) {
      for (int n = 0; n < kOutputs; ++n, table += 2 * W) {
        S::store(table, S::partial_sums(grad + kOutputs + n, kGrads, kGroup));
        if constexpr (complex) S::store(table + W, S::partial_sums(grad + n, kGrads, kGroup));
      }
    }
  }

  // The total comes from memory while the rows are added up.
  void fetch_sums(const GroupTask<T>& task, int64_t block, int64_t tile) const {
    if (task.sums == nullptr) return;
    const T* from = task.sums + Order::tile_at(in_, tile, block);
    for (int n = 0; n < kTileSums; n += 64 / int(sizeof(T))) __builtin_prefetch(from + n, 1);
  }

  void add_rows_of(Signs signs, const Panels& c, int64_t b, int64_t end, int64_t block, int64_t tile, const T* tables,
                   TileSums& sums) const {
    const auto run = [&](auto outputs, auto registers) __attribute__((always_inline)) {
      constexpr int n = decltype(outputs)::value, v = decltype(registers)::value;
      if (signs == Signs::kNone) add_rows<Signs::kNone, n, v>(c, b, end, block, tile, tables, sums);
      else if (signs == Signs::kMasked) add_rows<Signs::kMasked, n, v>(c, b, end, block, tile, tables, sums);
      else if constexpr (S::group_size > 0 && !kOutputsAsLanes)
        add_rows<Signs::kLookup, n, v>(c, b, end, block, tile, tables, sums);
    };
    using One = std::integral_constant<int, 1>;
    using Whole = std::integral_constant<int, kOutputs>;
    using Vectors = std::integral_constant<int, kVectors>;
    const bool one = in_.in - block * kBlock <= W;
    if (in_.out - tile * kOutputs > 1) return one ? run(Whole{}, One{}) : run(Whole{}, Vectors{});
    return one ? run(One{}, One{}) : run(One{}, Vectors{});
  }

  // Adds a tile's sums to the total, which the first rows begin, or writes the gradients that they become.
  void finish_sums(const GroupTask<T>& task, bool first_rows, int64_t block, int64_t tile, const TileSums& sums) const {
    if (task.sums != nullptr) {
      const Reg* sum = &sums[0][0][0];
      T* to = task.sums + Order::tile_at(in_, tile, block);
      for (int n = 0; n < kTileSums / W; ++n, to += W) S::store(to, first_rows ? sum[n] : S::load(to) + sum[n]);
      return;
    }
    const NpuBackward<T> f = f_;  // read once: the compiler thinks that a store could change it
    const int64_t in = f.inputs.in, o = tile * kOutputs;
    const int outputs = int(min<int64_t>(kOutputs, f.inputs.out - o));
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = block * kBlock + v * W;
      const int count = int(min<int64_t>(W, in - i));
      if (count <= 0) break;
      const Reg gate = S::load_first(task.gate + i, count);
      Reg phase = S::load_first(task.phase_sums + i, count);
      for (int n = 0; n < outputs; ++n)
        weight_gradients<T, complex>(f, (task.model * f.inputs.out + o + n) * in + i, count, gate, sums[n][v], phase);
      S::store_first(task.phase_sums + i, phase, count);
    }
  }

  template <Signs signs, int N, int V>
  __attribute__((noinline)) void add_rows(const Panels& c, int64_t b, int64_t end, int64_t block, int64_t tile,
                                          const T* tables, TileSums& sums) const {
    if constexpr (kAtOnce || signs == Signs::kNone) {
      add_products<Products::kBoth, signs, N, V>(c, b, end, block, tile, tables, sums);
    } else {
      add_products<Products::kReal, signs, N, V>(c, b, end, block, tile, tables, sums);
      add_products<Products::kMask, signs, N, V>(c, b, end, block, tile, tables, sums);
    }
  }

  // A tile's real products, its mask products, or both, in one pass over rows [b, end).
  template <Products products, Signs signs, int N, int V>
  NPU_PASS void add_products(const Panels& c, int64_t b, int64_t end, int64_t block, int64_t tile, const T* tables,
                             TileSums& sums) const {
    constexpr bool reals = products != Products::kMask, masks = products != Products::kReal;
    constexpr bool masked = masks && signs == Signs::kMasked, looked_up = masks && signs == Signs::kLookup;
    const T *l_row = c.log_r(block, b), *grad = c.grads(tile, b);
    const Mask* m = masked ? c.mask(block, b) : nullptr;
    const typename Panels::Index* indices = looked_up ? c.index(block, b) : nullptr;
    while (b < end) {
      const int64_t run_end = min(b + kSumRun, end);
      Reg sp[N][V] = {}, sq[N][V] = {}, mp[N][V] = {}, mq[N][V] = {};
      const auto add_row = [&]() __attribute__((always_inline)) {
        Reg l[V];
        for (int v = 0; reals && v < V; ++v) l[v] = S::load(l_row + v * W);
        Mask negative[V];
        for (int v = 0; masked && v < V; ++v) S::load_mask(negative[v], m[v]);
        for (int n = 0; n < N; ++n) {
          if constexpr (reals || (complex && masked)) {
            const Reg dp = S::set1(grad[n]);
            for (int v = 0; reals && v < V; ++v) S::accumulate(sp[n][v], dp, l[v]);
            for (int v = 0; complex && masked && v < V; ++v) mp[n][v] = S::add_masked(mp[n][v], negative[v], dp);
          }
          if constexpr ((complex && reals) || masked) {
            const Reg dq = S::set1(grad[kOutputs + n]);
            for (int v = 0; complex && reals && v < V; ++v) S::accumulate(sq[n][v], dq, l[v]);
            for (int v = 0; masked && v < V; ++v) mq[n][v] = S::add_masked(mq[n][v], negative[v], dq);
          }
        }
        l_row += kBlock, grad += kGrads;
        if constexpr (masked) m += kVectors;
      };
      const auto add_group = [&]() __attribute__((always_inline)) {
        if constexpr (looked_up) {
          for (int n = 0; n < N; ++n) {
            const T* table = tables + n * 2 * W;
            for (int v = 0; v < V; ++v) mq[n][v] = mq[n][v] + S::lookup(S::load(table), indices[v]);
            for (int v = 0; complex && v < V; ++v) mp[n][v] = mp[n][v] + S::lookup(S::load(table + W), indices[v]);
          }
          tables += kOutputs * 2 * W, indices += kVectors;
        }
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
      // The compiler would keep the sums in registers for the next run, or, where it has none left, on the stack.
      __asm__ volatile("" ::: "memory");
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
