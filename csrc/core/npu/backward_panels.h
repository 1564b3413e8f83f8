// The panels of the wide backward (npu/backward_wide.h): L, m, dP and dQ of a chunk of rows. A block of inputs, or a
// tile of outputs, has all its rows one after the other, in the order in which the register tiles read them.
#pragma once

#include "npu/backward.h"
#include "npu/sign_tables.h"

namespace npu {
namespace NPU_ISA {
namespace wide {

// Registers of inputs of a block.
constexpr int kVectors = 2;
// Outputs of a tile.
template <bool complex>
constexpr int kSumOutputs = complex ? 3 : 6;
// Rows that the weight sums of a tile run over before they join the total, which may lie in memory: more of them join
// less often, fewer stay closer. Twice as many where their panels fit in kPanels. A multiple of every group size in
// simd/simd.h.
constexpr int64_t kSumRows = 288;
// From so many inputs on, mask products are looked up: the signs of a group of rows select one of all partial sums of
// these rows' dP (dQ). With fewer, masked additions take less time than making the sums. AMD's processors add in units
// of their own, beside the multiply-adds, so that lookups pay later there.
inline int64_t lookup_inputs() {
#if defined(__AVX512F__)
  static const int64_t inputs = __builtin_cpu_is("amd") ? 96 : 64;
  return inputs;
#else
  return kOutputsAsLanes ? 32 : 64;
#endif
}
// Bytes of the panels at most, if kSumRows rows take no more: for the second-level cache.
constexpr int64_t kPanels = int64_t(1) << 20;
// L is made of so many rows at a time, and dP and dQ of so many; those of the next ones are fetched meanwhile.
constexpr int64_t kLogRows = 48, kGradRows = 4;

template <typename T, bool complex>
class Chunk {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Mask = typename S::Mask;
  using Bits = typename S::Bits;
  static constexpr int W = S::width;

 public:
  static constexpr int kBlock = kVectors * W;            // inputs
  static constexpr int kOutputs = kSumOutputs<complex>;  // of a tile
  static constexpr int kGrads = 2 * kOutputs;            // dP and dQ of a row and tile
  // Rows of a lookup, and what tells their signs: bits of each input, or offsets of entries (npu/sign_tables.h).
  using Tables = SignTables<T, complex ? 2 : 1>;
  using Index = std::conditional_t<kOutputsAsLanes, uint8_t, Bits>;
  static constexpr int kGroup = kOutputsAsLanes ? kSigns : max(S::group_size, 1);
  static constexpr int kIndices = kOutputsAsLanes ? kBlock : kVectors;  // of a group and a block

  // For so many rows, or for some of them at a time.
  Chunk(const NpuBackward<T>& f, int64_t rows)
      : f_(f),
        in_(f.inputs),
        blocks_(ceil_div(in_.in, kBlock)),
        room_(kSumRows *
              min(max<int64_t>(1, ceil_div(rows, kSumRows)), max<int64_t>(1, kPanels / (row_size(in_) * kSumRows)))),
        looks_up_((S::group_size > 0 || kOutputsAsLanes) && in_.in >= lookup_inputs() &&
                  (!kOutputsAsLanes || Limits<T>::nearly_fills(in_.out))),
        log_r_(room_ * blocks_ * kBlock),
        grads_(room_ * tiles(in_) * kGrads),
        mask_(looks_up_ ? 0 : room_ * blocks_ * kVectors),
        index_(looks_up_ ? room_ / kGroup * blocks_ * kIndices : 0),
        negative_(room_ / kSumRows * blocks_) {}

  static int64_t sum_rows(const NpuInputs<T>& in) {
    return 2 * kSumRows * row_size(in) <= kPanels ? 2 * kSumRows : kSumRows;
  }

  int64_t room() const { return room_; }
  int64_t blocks() const { return blocks_; }
  bool looks_up() const { return looks_up_; }

  // The chunk's rows are those of the task from `row` on.
  void begin(const GroupTask<T>& task, int64_t row) {
    first_ = row == task.begin;
    rows_ = min(room_, task.end - row);
    row_ = task.model * in_.rows + row;
    x_ = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + row) * in_.in;
  }
  bool first() const { return first_; }  // whether they are the task's first
  int64_t rows() const { return rows_; }
  int64_t row(int64_t b) const { return row_ + b; }  // the b-th one, of all models' rows
  const T* x(int64_t b, int64_t i) const { return x_ + b * in_.in + i; }

  // L of a row and a block [kBlock], zero behind I; dP and dQ of a row and a tile [kGrads].
  NPU_INLINE T* log_r(int64_t block, int64_t b) const { return log_r_ + (block * room_ + b) * kBlock; }
  NPU_INLINE T* grads(int64_t tile, int64_t b) const { return grads_ + (tile * room_ + b) * kGrads; }
  // m of a row and a block [kVectors]; where it is looked up, of the row's group instead [kIndices].
  NPU_INLINE Mask* mask(int64_t block, int64_t b) const { return mask_ + (block * room_ + b) * kVectors; }
  NPU_INLINE Index* index(int64_t block, int64_t b) const { return index_ + (block * room_ + b) / kGroup * kIndices; }
  // Whether any x of the block is negative, in the kSumRows rows that b is one of.
  NPU_INLINE bool& negative(int64_t block, int64_t b) const { return negative_[(block * room_ + b) / kSumRows]; }

  // dP and dQ of the rows [begin, end), which are such kSumRows rows, and L and m of their blocks [first, last).
  void prepare(const GroupTask<T>& task, int64_t begin, int64_t end, int64_t first, int64_t last) const {
    for (int64_t block = first; block < last; ++block) negative(block, begin) = false;
    for (int64_t b = begin; b < end; b += kLogRows) {
      for (int64_t block = first; block < last; ++block)
        for (int v = 0; v < kVectors && block * kBlock + v * W < in_.in; ++v)
          negative(block, begin) |= prepare_logs(task, b, min(b + kLogRows, end), block, v);
    }
    for (int64_t b = begin; b < end; b += kGradRows) {
      const int rows = int(min<int64_t>(kGradRows, end - b)), next = int(min<int64_t>(kGradRows, end - b - rows));
      prepare_grads(b, rows, next);
    }
  }

 private:
  static int64_t tiles(const NpuInputs<T>& in) { return ceil_div(in.out, kOutputs); }
  static int64_t row_size(const NpuInputs<T>& in) {
    return (ceil_div(in.in, kBlock) * kBlock + tiles(in) * kGrads) * int64_t(sizeof(T));
  }

  // L and m of a register of inputs; returns whether any is negative.
  bool prepare_logs(const GroupTask<T>& task, int64_t begin, int64_t end, int64_t block, int v) const {
    const int64_t i = block * kBlock + v * W;
    const int count = int(min<int64_t>(W, in_.in - i));
    const Gate<T> gate(S::load_first(task.gate + i, count), S::set1(in_.eps));  // 0 behind I: r = 1, L = 0
    const int64_t step = in_.in;  // read once: the compiler thinks that a store could change it
    const T* x_row = x(begin, i);
    T* log_row = log_r(block, begin) + v * W;
    NextRows<T, 1> next(x_row - i, end - begin, step, i);
    const auto log = [&]() __attribute__((always_inline)) {
      const Reg x = S::load_first(x_row, count);
      next.fetch();
      S::store(log_row, gate.log(x));
      x_row += step, log_row += kBlock;
      return x;
    };
    if (!looks_up_) {
      bool any = false;
      for (int64_t b = begin; b < end; ++b) any |= S::store_negative(mask(block, b) + v, log());
      return any;
    }
    Bits any = {};
    for (int64_t b = begin; b < end;) {
      Bits marks = {};
      Index* const to = index(block, b) + v * (kIndices / kVectors);
      for (int r = 0; r < kGroup && b < end; ++r, ++b) marks = S::mark_negative(marks, log(), r);
      if constexpr (kOutputsAsLanes)
        for (int l = 0; l < W; ++l) to[l] = Tables::offset(unsigned(marks[l]));
      else *to = marks;
      any |= marks;
    }
    return S::any_mark(any);
  }

  // dP and dQ of some rows, tile by tile, which lie in pages of their own. Fetches the next rows'.
  void prepare_grads(int64_t b, int rows, int next) const {
    constexpr int kTiles = W / kOutputs, kStep = max(1, kTiles) * kOutputs;  // of a register
    using Tiles = std::make_integer_sequence<int, kTiles>;
    // Read once: the compiler thinks that a store could change them.
    const int64_t out = in_.out, from = row(b) * out, left = in_.models * in_.rows * out - from, step = room_ * kGrads;
    const T *const grad_y = f_.grad_y + from, *const y = f_.y + from, *const s = f_.s + from;
    T* to = grads(0, b);
    for (int64_t o = 0; o < out; o += kStep, to += kStep / kOutputs * step) {
      for (int r = rows; r < rows + next; ++r)
        for (const T* p : {grad_y, y, s}) __builtin_prefetch(p + r * out + o);
      const int count = int(min<int64_t>(kStep, out - o));
      if constexpr (kTiles > 0) {
        // Whole registers, unless the last one went beyond the last row: what lies behind the outputs is never used.
        const auto store_rows = [&](int tiles, const auto& load) __attribute__((always_inline)) {
          for (int r = 0; r < rows; ++r) {
            const int64_t at = r * out + o;
            store_grads(load(grad_y + at), load(y + at), load(s + at), tiles, to + r * kGrads, step, Tiles{});
          }
        };
        if (count == kStep && (rows - 1) * out + o + W <= left)
          store_rows(kTiles, [](const T* p) { return S::load(p); });
        else store_rows(int(ceil_div(count, kOutputs)), [count](const T* p) { return S::load_first(p, count); });
      } else {
        for (int r = 0; r < rows; ++r) {
          for (int n = 0; n < count; ++n) {
            const int64_t at = r * out + o + n;
            to[r * kGrads + n] = grad_y[at] * y[at];
            to[r * kGrads + kOutputs + n] = -grad_y[at] * s[at];
          }
        }
      }
    }
  }

  // The dP and dQ of up to a register of outputs: so many tiles, `step` apart.
  template <int... Tile>
  static NPU_INLINE void store_grads(Reg grad_y, Reg y, Reg s, int tiles, T* to, int64_t step,
                                     std::integer_sequence<int, Tile...>) {
    const Reg p = grad_y * y, q = -grad_y * s;
    const auto store = [&](auto tile) __attribute__((always_inline)) {
      constexpr int kFirst = decltype(tile)::value * kOutputs;
      if (tile >= tiles) return;
      T* const at = to + tile * step;
      if constexpr (S::stores_masked && kGrads <= W) {
        S::template store_first<kGrads>(at, pick_tile<kFirst>(p, q, std::make_integer_sequence<int, W>{}));
      } else {
        std::memcpy(at, reinterpret_cast<const T*>(&p) + kFirst, kOutputs * sizeof(T));
        std::memcpy(at + kOutputs, reinterpret_cast<const T*>(&q) + kFirst, kOutputs * sizeof(T));
      }
    };
    (store(std::integral_constant<int, Tile>{}), ...);
  }
  template <int first, int... L>
  static NPU_INLINE Reg pick_tile(Reg p, Reg q, std::integer_sequence<int, L...>) {
    return S::pick(p, q,
                   std::integer_sequence<int, (L < kOutputs ? first + L : W + first + (L - kOutputs) % kOutputs)...>{});
  }

  const NpuBackward<T>& f_;
  const NpuInputs<T>& in_;
  const int64_t blocks_, room_;
  const bool looks_up_;
  Scratch<T> log_r_, grads_;
  Scratch<Mask> mask_;
  Scratch<Index> index_;
  Scratch<bool> negative_;
  bool first_ = false;
  int64_t rows_ = 0, row_ = 0;
  const T* x_ = nullptr;
};

}  // namespace wide
}  // namespace NPU_ISA
}  // namespace npu
