// The backward of layers with many inputs: a register holds `width` inputs of one row, so that nothing is turned and no
// sum runs over lanes. A chunk keeps L, m, dP and dQ in the order in which the tiles read them; ranges of I are then
// independent.
#pragma once

#include "npu_backward.h"

namespace npu {
namespace NPU_ISA {
namespace wide {

// Registers of inputs of a tile, which are a block of inputs.
constexpr int kVectors = 2;
// Register tiles. dL: so many rows x a block. Weight sums: so many outs x a block, two (RealNPU) or four sums each: all
// at once in 32 registers; in 16 the real products first, the mask products then.
template <bool complex>
constexpr int kSumOuts = complex ? 3 : 6;
#if defined(__AVX512F__)
constexpr int kSpreadRows = 12;
constexpr bool kAtOnce = true;
#define NPU_PASS NPU_INLINE
#else
constexpr int kSpreadRows = 6;
constexpr bool kAtOnce = false;
#define NPU_PASS __attribute__((noinline))  // or the sums of one pass would keep registers from the other
#endif

// Rows that the weight sums of a tile run over before they join the total, which lies in the third-level cache or in
// memory: more of them join less often, fewer stay closer. Within them the rows come in runs, so that what the blocks
// share, the tables and dP and dQ of a tile, stays in the first-level cache.
constexpr int64_t kSumRows = 288, kTableRows = 96;
// Rows that an accumulator takes up before it joins the tile's sums: every addition of equal terms rounds the same way,
// so that errors grow with the length of a run. Twice as many where twice as many accumulators would join (measured).
#if defined(__AVX512F__)
constexpr int64_t kSumRun = 48;
#else
constexpr int64_t kSumRun = 24;
#endif
// Of these three each is a multiple of the next, and all of every group size in simd.h.
static_assert(kSumRows % kTableRows == 0 && kTableRows % kSumRun == 0);

// From so many inputs on, mask products are looked up: the signs of a group of rows select one of all partial sums of
// these rows' dP (dQ). The tables of a tile serve so many blocks, whose L stays in the second-level cache.
constexpr int64_t kLookupIns = 64;
constexpr int kSumBlocks = 8;
enum class Signs { kNone, kMasked, kLookup };
enum class Products { kReal, kMask, kBoth };

// Up to so many rows dL reads the weights as they lie: packing them would cost more than it gains.
constexpr int64_t kFewRows = 24;
// Bytes of a chunk's panels at most, if kSumRows rows take no more: for the second-level cache.
constexpr int64_t kPanels = int64_t(1) << 20;
// Inputs are fetched so many rows ahead. dP and dQ are made of so many rows at a time, those of the next ones fetched.
constexpr int64_t kAhead = 32, kGradRows = 4;

template <typename T>
struct Chunk {
  int64_t rows, row;              // how many, and the first of all models' rows
  bool first;                     // whether they are the task's first
  int64_t room;                   // rows that the panels have room for
  int64_t blocks;                 // of inputs
  const T* x;                     // [rows][I]
  T* log_r;                       // [blocks][room][kBlock], zero behind I
  typename Simd<T>::Mask* mask;   // [blocks][room][kVectors], or null and
  typename Simd<T>::Bits* index;  // [blocks][room / group size][kVectors]: the masks of a group of rows as bits
  bool* negative;                 // [blocks][room / kSumRows]: any x < 0
  T* grads;                       // [tiles of outs][room][dP of the outs, dQ of the outs]
};

template <typename T, bool complex>
class Group {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Mask = typename S::Mask;
  static constexpr int W = S::width;
  static constexpr int kBlock = kVectors * W;  // inputs
  static constexpr int kWeights = complex ? 2 : 1;
  static constexpr int kOuts = kSumOuts<complex>;                       // of a tile
  static constexpr int kGrads = 2 * kOuts;                              // dP and dQ of a row and tile
  static constexpr int kGroup = S::group_size > 0 ? S::group_size : 1;  // rows of a lookup
  using TileSums = Reg[kOuts][kVectors][kParts<complex>];
  static constexpr int kTileSums = kOuts * kBlock * kParts<complex>;

 public:
  // [tiles of outs][blocks of inputs][a tile's sums]: those of a tile and a block lie beside each other.
  struct Order {
    static int64_t size(const NpuInputs<T>& in) {
      return ceil_div(in.out, kOuts) * ceil_div(in.in, kBlock) * kTileSums;
    }
    static int64_t tile_at(const NpuInputs<T>& in, int64_t tile, int64_t block) {
      return (tile * ceil_div(in.in, kBlock) + block) * kTileSums;
    }
    static int64_t at(const NpuInputs<T>& in, int part, int64_t o, int64_t i) {
      const int64_t within = (o % kOuts * kVectors + i % kBlock / W) * kParts<complex> + part;
      return tile_at(in, o / kOuts, i / kBlock) + within * W;
    }
  };

  explicit Group(const NpuBackward<T>& f) : f_(f), in_(f.inputs) {}

  static constexpr bool kShares = true;
  static constexpr int64_t kSpan = 2048;
  // Where the rows are few enough for one pass of the weight sums.
  static bool writes_gradients(const NpuBackward<T>& f) { return f.inputs.rows <= kSumRows; }

  void run(const GroupTask<T>& task, const Parallel& inner) const {
    const int64_t blocks = ceil_div(in_.in, kBlock), tiles = ceil_div(in_.out, kOuts);
    std::memset(task.phase_sums, 0, size_t(in_.in) * sizeof(T));
    Chunk<T> c;
    const int64_t row_size = (blocks * kBlock + tiles * kGrads) * int64_t(sizeof(T));
    c.room = least<int64_t>(most<int64_t>(1, ceil_div(task.end - task.begin, kSumRows)),
                            most<int64_t>(1, kPanels / row_size / kSumRows)) *
             kSumRows;
    const bool packs = task.want_spread && task.end - task.begin > kFewRows;
    Scratch<T> packed(packs ? blocks * kBlock * in_.out * kWeights : 0);
    Scratch<T> log_r(c.room * blocks * kBlock), grads(c.room * tiles * kGrads);
    const bool looks_up = S::group_size > 0 && in_.in >= kLookupIns;
    Scratch<bool> negative(c.room / kSumRows * blocks);
    Scratch<Mask> mask(looks_up ? 0 : c.room * blocks * kVectors);
    Scratch<typename S::Bits> index(looks_up ? c.room / kGroup * blocks * kVectors : 0);
    c.blocks = blocks, c.log_r = log_r, c.grads = grads, c.negative = negative;
    c.mask = looks_up ? nullptr : static_cast<Mask*>(mask);
    c.index = looks_up ? static_cast<typename S::Bits*>(index) : nullptr;
    if (packs) {
      inner.over(blocks, [&](int64_t begin, int64_t end) NPU_ONCE {
        for (int64_t block = begin; block < end; ++block) pack(task.model, block, packed);
      });
    }
    for (int64_t row = task.begin; row < task.end; row += c.room) {
      c.first = row == task.begin;
      c.rows = least(c.room, task.end - row);
      c.row = task.model * in_.rows + row;
      c.x = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + row) * in_.in;
      inner.over(ceil_div(c.rows, kSumRows), [&](int64_t begin, int64_t end) NPU_ONCE {
        for (int64_t n = begin; n < end; ++n) prepare(task, c, n * kSumRows, least((n + 1) * kSumRows, c.rows));
      });
      inner.over(blocks, [&](int64_t begin, int64_t end) NPU_ONCE {
        for (int64_t block = begin; block < end; ++block) {
          if (packs) spread<true>(task, c, block, packed + block * kBlock * in_.out * kWeights);
          else if (task.want_spread) spread<false>(task, c, block, nullptr);
        }
        if (task.want_sums) sum(task, c, begin, end);
      });
    }
  }

 private:
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
    for (int64_t block = 0; block < c.blocks; ++block) {
      bool any = false;
      for (int v = 0; v < kVectors && block * kBlock + v * W < in_.in; ++v)
        any |= prepare_logs(task, c, begin, end, block, v);
      negative(c, block, begin) = any;
    }
    for (int64_t b = begin; b < end; b += kGradRows) {
      const int rows = int(least<int64_t>(kGradRows, end - b)), next = int(least<int64_t>(kGradRows, end - b - rows));
      prepare_grads(c, b, rows, next);
    }
  }

  // L and m of a register of inputs; returns whether any is negative.
  bool prepare_logs(const GroupTask<T>& task, const Chunk<T>& c, int64_t begin, int64_t end, int64_t block,
                    int v) const {
    const int64_t i = block * kBlock + v * W;
    const int count = int(least<int64_t>(W, in_.in - i));
    const Reg g = S::load_first(task.gate + i, count);  // zero behind I: r = 1, L = 0
    const Reg eps = S::set1(in_.eps), rest = S::set1(T(1)) - g;
    const T* x_row = c.x + begin * in_.in + i;
    T* log_row = log_r(c, block, begin) + v * W;
    const auto log = [&](int64_t b) __attribute__((always_inline)) {
      if (b + kAhead < end) __builtin_prefetch(x_row + kAhead * in_.in);
      const Reg x = S::load_first(x_row, count);
      S::store(log_row, VectorMath<T>::log(S::fma(g, S::abs(x) + eps, rest)));
      x_row += in_.in, log_row += kBlock;
      return x;
    };
    if (c.index == nullptr) {
      bool any = false;
      for (int64_t b = begin; b < end; ++b) any |= S::store_negative(mask(c, block, b) + v, log(b));
      return any;
    }
    typename S::Bits any = {};
    for (int64_t b = begin; b < end;) {
      typename S::Bits marks = {};
      typename S::Bits* const to = index(c, block, b) + v;
      for (int r = 0; r < kGroup && b < end; ++r, ++b) marks = S::mark_negative(marks, log(b), r);
      *to = marks;
      any |= marks;
    }
    return S::any_mark(any);
  }

  // dP and dQ of some rows, tile by tile, which lie in pages of their own. Fetches the next rows'.
  void prepare_grads(const Chunk<T>& c, int64_t b, int rows, int next) const {
    constexpr int kTiles = W / kOuts, kStep = most(1, kTiles) * kOuts;  // of a register
    const int64_t all = in_.models * in_.rows * in_.out;
    for (int64_t o = 0; o < in_.out; o += kStep) {
      const int count = int(least<int64_t>(kStep, in_.out - o));
      T* to = grads(c, o / kOuts, b);
      for (int r = rows; r < rows + next; ++r)
        for (const T* p : {f_.grad_y, f_.y, f_.s}) __builtin_prefetch(p + (c.row + b + r) * in_.out + o);
      for (int r = 0; r < rows; ++r, to += kGrads) {
        const int64_t from = (c.row + b + r) * in_.out + o;
        if constexpr (kTiles > 0) {
          // A whole register, unless it went beyond the last row: what lies behind the outs is never used.
          const int lanes = from + W <= all ? W : count;
          const Reg grad_y = S::load_first(f_.grad_y + from, lanes);
          const Reg p = grad_y * S::load_first(f_.y + from, lanes);
          const Reg q = -grad_y * S::load_first(f_.s + from, lanes);
          store_grads(p, q, count, c.room * kGrads, to, std::make_integer_sequence<int, kTiles>{});
        } else {
          for (int n = 0; n < count; ++n) {
            to[n] = f_.grad_y[from + n] * f_.y[from + n];
            to[kOuts + n] = -f_.grad_y[from + n] * f_.s[from + n];
          }
        }
      }
    }
  }

  // The dP and dQ of up to a register of outs, tile by tile.
  template <int... Tile>
  static NPU_INLINE void store_grads(Reg p, Reg q, int count, int64_t stride, T* to,
                                     std::integer_sequence<int, Tile...>) {
    const auto store = [&](auto tile) __attribute__((always_inline)) {
      constexpr int kFirst = decltype(tile)::value * kOuts;
      if (kFirst >= count) return;
      if constexpr (S::stores_masked && kGrads <= W) {
        S::store_first(to + tile * stride, pick_tile<kFirst>(p, q, std::make_integer_sequence<int, W>{}), kGrads);
      } else {
        std::memcpy(to + tile * stride, reinterpret_cast<const T*>(&p) + kFirst, kOuts * sizeof(T));
        std::memcpy(to + tile * stride + kOuts, reinterpret_cast<const T*>(&q) + kFirst, kOuts * sizeof(T));
      }
    };
    (store(std::integral_constant<int, Tile>{}), ...);
  }
  template <int first, int... L>
  static NPU_INLINE Reg pick_tile(Reg p, Reg q, std::integer_sequence<int, L...>) {
    return S::pick(p, q, std::integer_sequence<int, (L < kOuts ? first + L : W + first + (L - kOuts) % kOuts)...>{});
  }

  // Where a row is in the panels.
  static NPU_INLINE T* log_r(const Chunk<T>& c, int64_t block, int64_t b) {
    return c.log_r + (block * c.room + b) * kBlock;
  }
  static NPU_INLINE T* grads(const Chunk<T>& c, int64_t tile, int64_t b) {
    return c.grads + (tile * c.room + b) * kGrads;
  }
  static NPU_INLINE Mask* mask(const Chunk<T>& c, int64_t block, int64_t b) {
    return c.mask + (block * c.room + b) * kVectors;
  }
  static NPU_INLINE typename S::Bits* index(const Chunk<T>& c, int64_t block, int64_t b) {
    return c.index + (block * c.room + b) / kGroup * kVectors;
  }
  static NPU_INLINE bool& negative(const Chunk<T>& c, int64_t block, int64_t b) {
    return c.negative[(block * c.room + b) / kSumRows];
  }

  // dL = dP Wr + dQ Wi of a block of inputs, and from it dx and the gate's sums: those of a tile's rows join a run of
  // some kRun rows, and the runs the total, for the rounding errors' sake.
  template <bool packs>
  void spread(const GroupTask<T>& task, const Chunk<T>& c, int64_t block, const T* w) const {
    const int64_t i0 = block * kBlock, i1 = least(i0 + kBlock, in_.in);
    T run[kBlock] = {};
    int64_t in_run = 0;
    for (int64_t b = 0; b < c.rows;) {
      const int64_t left = c.rows - b, rows = left >= kSpreadRows ? kSpreadRows : (left >= 3 ? 3 : 1);
      if (rows == kSpreadRows) spread_some<packs, kSpreadRows>(task, c, b, i0, i1, w, run);
      else if (rows == 3) spread_some<packs, 3>(task, c, b, i0, i1, w, run);
      else spread_some<packs, 1>(task, c, b, i0, i1, w, run);
      b += rows;
      in_run += rows;
      if (in_run < kRun && b < c.rows) continue;
      for (int64_t i = i0; i < i1; ++i) task.gate_sums[i] += double(run[i - i0]);
      std::memset(run, 0, sizeof run);
      in_run = 0;
    }
  }

  template <bool packs, int R>
  void spread_some(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int64_t i0, int64_t i1, const T* w,
                   T* gate_run) const {
    if (i1 - i0 > W) spread_tile<packs, R, kVectors>(task, c, b, i0, i1, w, gate_run);
    else spread_tile<packs, R, 1>(task, c, b, i0, i1, w, gate_run);
  }

  template <bool packs, int R, int V>
  void spread_tile(const GroupTask<T>& task, const Chunk<T>& c, int64_t b, int64_t i0, int64_t i1, const T* w,
                   T* gate_run) const {
    Reg dl[R][V] = {};
    // What finish_rows reads and writes comes near meanwhile.
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) {
        __builtin_prefetch(c.x + (b + r) * in_.in + i0 + v * W);
        if (f_.grad_x != nullptr) __builtin_prefetch(f_.grad_x + (c.row + b + r) * in_.in + i0 + v * W, 1);
      }
    }
    const T* grad = grads(c, 0, b);
    int64_t o = 0;
    while (o < in_.out) {
      Reg run[R][V] = {};
      // The n-th out of the tile of outs that o begins.
      const auto add = [&](int n) __attribute__((always_inline)) {
        for (int part = 0; part < kWeights; ++part) {
          Reg factor[V];
          for (int v = 0; v < V; ++v) {
            if constexpr (packs) {
              factor[v] = S::load(w + ((o + n) * kWeights + part) * kBlock + v * W);
            } else {
              const int64_t at = (task.model * in_.out + o + n) * in_.in + i0 + v * W;
              factor[v] =
                  S::load_first((part ? in_.weight_im : in_.weight_re) + at, int(least<int64_t>(W, i1 - i0 - v * W)));
            }
          }
          for (int r = 0; r < R; ++r) {
            const Reg d = S::set1(grad[r * kGrads + part * kOuts + n]);
            for (int v = 0; v < V; ++v) S::accumulate(run[r][v], d, factor[v]);
          }
        }
      };
      const int64_t end = least(o + kRun, in_.out);
      for (; o + kOuts <= end; o += kOuts, grad += c.room * kGrads)
        for (int n = 0; n < kOuts; ++n) add(n);
      for (int n = 0; n < end - o; ++n) add(n);
      o = end;
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

  // The weight sums of the blocks of inputs [first, last): a tile of outs after the other, of some blocks at a time.
  void sum(const GroupTask<T>& task, const Chunk<T>& c, int64_t first, int64_t last) const {
    alignas(64) T tables[S::group_size > 0 ? kOuts * (kTableRows / kGroup) * 2 * W : 1];
    for (int64_t b = 0; b < c.rows; b += kSumRows) {
      const int64_t end = least(b + kSumRows, c.rows);
      for (int64_t block = first; block < last; block += kSumBlocks) {
        const int64_t blocks = least<int64_t>(kSumBlocks, last - block);
        const bool looks_up = c.index != nullptr && any_negative(c, b, block, blocks);
        for (int64_t tile = 0; tile * kOuts < in_.out; ++tile) {
          TileSums sums[kSumBlocks];
          std::memset(sums, 0, size_t(blocks) * sizeof(TileSums));
          for (int64_t row = b; row < end; row += kTableRows) {
            const int64_t row_end = least(row + kTableRows, end);
            const bool last_rows = row_end == end;
            if (looks_up) fill_tables(c, row, row_end, tile, tables);
            if (last_rows) fetch_sums(task, block, tile);
            for (int64_t n = 0; n < blocks; ++n) {
              if (last_rows && n + 1 < blocks) fetch_sums(task, block + n + 1, tile);
              add_rows_of(signs(c, b, block + n), c, row, row_end, block + n, tile, tables, sums[n]);
              if (last_rows) finish_sums(task, c.first && b == 0, block + n, tile, sums[n]);
            }
          }
        }
      }
    }
  }

  static bool any_negative(const Chunk<T>& c, int64_t b, int64_t block, int64_t blocks) {
    bool any = false;
    for (int64_t n = 0; n < blocks; ++n) any |= negative(c, block + n, b);
    return any;
  }
  static Signs signs(const Chunk<T>& c, int64_t b, int64_t block) {
    if (!any_negative(c, b, block, 1)) return Signs::kNone;
    return c.index != nullptr ? Signs::kLookup : Signs::kMasked;
  }

  // The partial sums of every group of rows from b to the one with `end`: [groups][outs][of dQ, of dP]. Sums with rows
  // behind the last one, which may be anything, are never looked up.
  static void fill_tables(const Chunk<T>& c, int64_t b, int64_t end, int64_t tile, T* table) {
    const T* grad = grads(c, tile, b);
    for (; b < end; b += kGroup, grad += kGroup * kGrads) {
      for (int n = 0; n < kOuts; ++n, table += 2 * W) {
        S::store(table, S::partial_sums(grad + kOuts + n, kGrads, kGroup));
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

  void add_rows_of(Signs signs, const Chunk<T>& c, int64_t b, int64_t end, int64_t block, int64_t tile, const T* tables,
                   TileSums& sums) const {
    const auto run = [&](auto outs, auto registers) __attribute__((always_inline)) {
      constexpr int n = decltype(outs)::value, v = decltype(registers)::value;
      if (signs == Signs::kNone) add_rows<Signs::kNone, n, v>(c, b, end, block, tile, tables, sums);
      else if (signs == Signs::kMasked) add_rows<Signs::kMasked, n, v>(c, b, end, block, tile, tables, sums);
      else if constexpr (S::group_size > 0) add_rows<Signs::kLookup, n, v>(c, b, end, block, tile, tables, sums);
    };
    using One = std::integral_constant<int, 1>;
    using Whole = std::integral_constant<int, kOuts>;
    using Vectors = std::integral_constant<int, kVectors>;
    const bool one = in_.in - block * kBlock <= W;
    if (in_.out - tile * kOuts > 1) return one ? run(Whole{}, One{}) : run(Whole{}, Vectors{});
    return one ? run(One{}, One{}) : run(One{}, Vectors{});
  }

  // Adds a tile's sums to the total, which the first rows begin, or writes the gradients that they become.
  void finish_sums(const GroupTask<T>& task, bool first_rows, int64_t block, int64_t tile, const TileSums& sums) const {
    const Reg* sum = &sums[0][0][0];
    if (task.sums != nullptr) {
      T* to = task.sums + Order::tile_at(in_, tile, block);
      for (int n = 0; n < kTileSums / W; ++n, to += W) S::store(to, first_rows ? sum[n] : S::load(to) + sum[n]);
      return;
    }
    for (int64_t o = tile * kOuts; o < least((tile + 1) * kOuts, in_.out); ++o) {
      for (int64_t i = block * kBlock; i < (block + 1) * kBlock; i += W, sum += kParts<complex>) {
        const int count = int(least<int64_t>(W, in_.in - i));
        if (count <= 0) continue;
        weight_gradients<T, complex>(f_, (task.model * in_.out + o) * in_.in + i, count,
                                     S::load_first(task.gate + i, count), sum, task.phase_sums + i);
      }
    }
  }

  template <Signs signs, int N, int V>
  __attribute__((noinline)) void add_rows(const Chunk<T>& c, int64_t b, int64_t end, int64_t block, int64_t tile,
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
  NPU_PASS void add_products(const Chunk<T>& c, int64_t b, int64_t end, int64_t block, int64_t tile, const T* tables,
                             TileSums& sums) const {
    constexpr bool reals = products != Products::kMask, masks = products != Products::kReal;
    constexpr bool masked = masks && signs == Signs::kMasked, looked_up = masks && signs == Signs::kLookup;
    const T *l_row = log_r(c, block, b), *grad = grads(c, tile, b);
    const Mask* m = masked ? mask(c, block, b) : nullptr;
    const typename S::Bits* indices = looked_up ? index(c, block, b) : nullptr;
    while (b < end) {
      const int64_t run_end = least(b + kSumRun, end);
      Reg sp[N][V] = {}, sq[N][V] = {}, mp[N][V] = {}, mq[N][V] = {};
      const auto add_row = [&]() __attribute__((always_inline)) {
        Reg l[V];
        for (int v = 0; reals && v < V; ++v) l[v] = S::load(l_row + v * W);
        for (int n = 0; n < N; ++n) {
          if constexpr (reals || (complex && masked)) {
            const Reg dp = S::set1(grad[n]);
            for (int v = 0; reals && v < V; ++v) S::accumulate(sp[n][v], dp, l[v]);
            for (int v = 0; complex && masked && v < V; ++v) mp[n][v] = S::add_masked(mp[n][v], m[v], dp);
          }
          if constexpr ((complex && reals) || masked) {
            const Reg dq = S::set1(grad[kOuts + n]);
            for (int v = 0; complex && reals && v < V; ++v) S::accumulate(sq[n][v], dq, l[v]);
            for (int v = 0; masked && v < V; ++v) mq[n][v] = S::add_masked(mq[n][v], m[v], dq);
          }
        }
        l_row += kBlock, grad += kGrads;
        if constexpr (masked) m += kVectors;
      };
      const auto add_group = [&]() __attribute__((always_inline)) {
        for (int n = 0; n < N; ++n) {
          const T* table = tables + n * 2 * W;
          for (int v = 0; v < V; ++v) mq[n][v] = mq[n][v] + S::lookup(S::load(table), indices[v]);
          for (int v = 0; complex && v < V; ++v) mp[n][v] = mp[n][v] + S::lookup(S::load(table + W), indices[v]);
        }
        tables += kOuts * 2 * W, indices += kVectors;
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
