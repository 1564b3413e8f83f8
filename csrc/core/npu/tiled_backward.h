// Side work of the backward by tile products (npu/tiled_backward.cpp): inputs become panels, products become gradients.
// Each class is a job in slices (npu/side_work.h).
#pragma once

#include "npu/backward_groups.h"
#include "npu/tiles.h"

namespace npu {
namespace NPU_ISA {
namespace {

using tiles::Ranges;
using tiles::Reg;
using tiles::S;

// The rows of a group go in chunks, outputs in blocks.
struct Chunk {
  int64_t row, rows;     // the first of the model's rows, and how many
  bool first, last;      // of the group
  int64_t out, outputs;  // of the block
};

// dx and the gate's sums of two tiles of rows and of inputs, from dL. A slice is two rows of a tile.
class Spread {
 public:
  explicit Spread(const NpuBackward<float>& f) : f_(f), in_(f.inputs) {}

  // Rows [b, b + 32) of the chunk and inputs [i, i + 32), as far as they are there.
  void begin(const GroupTask<float>& task, const Chunk& c, int64_t b, int64_t i, const float* sums) {
    task_ = &task, sums_ = sums;
    rows_ = min(kTilePair, c.rows - b);
    row_ = c.row + b;
    begin_tile(0, i);
  }
  int64_t slices() const { return ceil_div(min(kTilePair, in_.in - i_), kTile) * ceil_div(rows_, 2); }

  void next() {
    const Gate<float> gate(S::load_first(task_->gate + i_, count_), S::set1(in_.eps));
    const float* x = in_.x + ((in_.shared_x ? 0 : task_->model * in_.rows) + row_ + n_) * in_.in + i_;
    for (int64_t end = min(n_ + 2, rows_); n_ < end; ++n_, x += in_.in) {
      // The rows of the next product: they lie too far apart for the processor to guess.
      __builtin_prefetch(x + kTilePair * in_.in);
      const Reg dl = S::load(sums_ + (n_ / kTile * 2 * kTile + tile_ * kTile + n_ % kTile) * kTile);
      const Reg dx = gate.spread(dl, S::load_first(x, count_), &gate_sums_[n_ / kTile]);
      if (f_.grad_x == nullptr) continue;
      float* to = f_.grad_x + (task_->model * in_.rows + row_ + n_) * in_.in + i_;
      __builtin_prefetch(to + kTilePair * in_.in, 1);
      S::store_first(to, dx, count_);
    }
    if (n_ < rows_) return;
    const Reg gate_sum = gate_sums_[0] + gate_sums_[1];
    for (int n = 0; n < count_; ++n) task_->gate_sums[i_ + n] += double(gate_sum[n]);
    begin_tile(tile_ + 1, i_ + kTile);
  }

 private:
  void begin_tile(int tile, int64_t i) {
    tile_ = tile, i_ = i, n_ = 0;
    count_ = int(min<int64_t>(kTile, in_.in - i));
    gate_sums_[0] = gate_sums_[1] = S::zero();
  }

  const NpuBackward<float>& f_;
  const NpuInputs<float>& in_;
  const GroupTask<float>* task_ = nullptr;
  const float* sums_ = nullptr;
  int64_t rows_ = 0, row_ = 0;
  // The next slice: its tile of inputs, which begins with i, and its row.
  int tile_ = 0, count_ = 0;
  int64_t i_ = 0, n_ = 0;
  Reg gate_sums_[2];  // of a tile of rows each: shorter runs round less
};

// L and m of a chunk's rows and of 32 inputs, transposed, as A panels: where they stand.
template <int terms>
struct TransposedPanels {
  // bfloat16 of them, for a chunk of so many rows.
  static int64_t size(int64_t rows) { return 2 * ceil_div(rows, kTileDepth) * (terms + 1) * kTileSize; }

  Bf16* begin;
  int64_t depth;  // k tiles
  bool negative;  // any x

  Bf16* log_panel(int tile) const { return begin + tile * depth * terms * kTileSize; }
  Bf16* mask_panel(int tile) const { return begin + (2 * terms + tile) * depth * kTileSize; }
};

// Makes them. A slice turns 16 rows, or is an input of 32 rows.
template <int terms>
class Transposed {
 public:
  Transposed(const NpuInputs<float>& in, const Ranges& ranges) : in_(in), ranges_(ranges) {}

  // Inputs from i on.
  void begin(const GroupTask<float>& task, const Chunk& c, int64_t i, TransposedPanels<terms>& to) {
    task_ = &task, first_i_ = i, row_ = c.row, rows_ = c.rows, to_ = &to;
    x_ = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + c.row) * in_.in;
    tile_ = step_ = 0, k_ = 0;
    to.depth = ceil_div(rows_, kTileDepth);
    to.negative = false;
  }
  int64_t slices() const { return 2 * to_->depth * kSteps; }

  void next() {
    const int64_t i = first_i_ + tile_ * kTile;
    const int count = int(max<int64_t>(0, min<int64_t>(kTile, in_.in - i)));
    if (step_ < 2) load(step_, i, count);
    else transpose(step_ - 2, i, count);
    if (++step_ < kSteps) return;
    step_ = 0;
    if (++k_ < to_->depth) return;
    k_ = 0;
    if (++tile_ == 2) ranges_.operand(task_->model, largest_), largest_ = {};
  }

 private:
  static constexpr int kSteps = 2 + kTile;

  void load(int half, int64_t i, int count) {
    Reg* value = value_ + half * kTile;
    const int64_t row = k_ * kTileDepth + half * kTile;
    const float* x = x_ + row * in_.in + i;
    for (int n = 0; n < kTile; ++n, x += in_.in) {
      __builtin_prefetch(x + kTileDepth * in_.in);
      value[n] = row + n < rows_ && count > 0 ? S::load_first(x, count) : S::zero();
    }
    S::transpose(value);
  }

  void transpose(int n, int64_t i, int count) {
    Reg l[2] = {};
    S::Mask m[2] = {};
    const Gate<float> gate(S::set1(n < count ? task_->gate[i + n] : 0), S::set1(in_.eps));
    for (int v = 0; v < 2 && n < count; ++v) {
      const Reg x = value_[v * kTile + n];
      const Reg log = gate.log(x);
      l[v] = tiles::first_lanes(log, int(min<int64_t>(kTileDepth, rows_ - k_ * kTileDepth)) - v * kTile);
      to_->negative |= S::store_negative(&m[v], x);
      largest_.see(l[v]);
    }
    tiles::split_row<terms>(l[0], l[1], to_->log_panel(tile_) + k_ * terms * kTileSize + n * kTileDepth);
    tiles::mask_row(m[0], m[1], to_->mask_panel(tile_) + k_ * kTileSize + n * kTileDepth);
  }

  const NpuInputs<float>& in_;
  const Ranges& ranges_;
  const GroupTask<float>* task_ = nullptr;
  TransposedPanels<terms>* to_ = nullptr;
  int64_t first_i_ = 0, row_ = 0, rows_ = 0;
  const float* x_ = nullptr;
  // The next slice: its tile of inputs, its 32 rows, and its step of kSteps.
  int tile_ = 0, step_ = 0;
  int64_t k_ = 0;
  Reg value_[kTileDepth];  // of an input each
  Ranges::Largest largest_;
};

// The weight sums of a unit of outputs and of 32 inputs: adds a chunk's products to those of the chunks before, or in
// the last chunk writes the sums, or their gradients. An accumulator that went on from chunk to chunk would round every
// addition to the growing sum of all rows. A slice is some registers.
template <bool complex>
class Sums {
 public:
  explicit Sums(const NpuBackward<float>& f) : f_(f), in_(f.inputs) {}

  // Blocks of products with L and with m: of the chunks before (null: there are none), and of this one (null: zero).
  struct Blocks {
    float *before_real, *before_mask;
    const float *real, *mask;
  };

  // From out o and input i on.
  void begin(const GroupTask<float>& task, const Chunk& c, int64_t o, int64_t i, const Blocks& blocks) {
    task_ = &task, last_ = c.last, blocks_ = blocks, out_ = o, i_ = i;
    end_out_ = c.out + c.outputs;
    at_ = 0;
  }
  int64_t slices() const {
    return last_                                                       ? 2 * kUnitTiles * kWriteSteps
           : blocks_.before_real == nullptr || blocks_.real == nullptr ? 0
                                                                       : kAddSteps;
  }

  void next() {
    if (!last_) return add(at_++);
    const int step = at_ % kWriteSteps, v = at_ / kWriteSteps % 2, tile = at_ / kWriteSteps / 2;
    ++at_;
    const int count = int(min<int64_t>(kTile, in_.in - i_ - v * kTile));
    if (count <= 0) return;
    if (step < kParts<complex>) transpose_back(Part(step), v, tile);
    else write((step - kParts<complex>)*2, out_ + tile * kTile, i_ + v * kTile, count);
  }

 private:
  static constexpr int kUnitTiles = complex ? 1 : 2;
  static constexpr int kAddSteps = 2 * kBlockSize / (4 * kTile), kWriteSteps = kParts<complex> + kTile / 2;
  static constexpr int64_t kColumn = kTile * kTile;  // the second column of tiles

  void add(int step) {
    const int64_t at = step * 4 * kTile % kBlockSize;
    float* to = (step < kAddSteps / 2 ? blocks_.before_real : blocks_.before_mask) + at;
    const float* from = step < kAddSteps / 2 ? blocks_.real : blocks_.mask;
    for (int64_t n = 0; from != nullptr && n < 4 * kTile; n += kTile)
      S::store(to + n, S::load(to + n) + S::load(from + at + n));
  }

  // A tile of inputs x outputs to registers of one out each.
  void transpose_back(Part part, int v, int tile) {
    const bool real = part == kSP || part == kSQ;
    const bool second = complex ? part == kSQ || part == kMQ : tile == 1;
    const int64_t at = v * 2 * kColumn + (second ? kColumn : 0);
    const float* before = real ? blocks_.before_real : blocks_.before_mask;
    const float* now = real ? blocks_.real : blocks_.mask;
    Reg* sum = sums_[part];
    for (int n = 0; n < kTile; ++n) {
      sum[n] = now == nullptr ? S::zero() : S::load(now + at + n * kTile);
      if (before != nullptr)
        sum[n] = now == nullptr ? S::load(before + at + n * kTile) : S::load(before + at + n * kTile) + sum[n];
    }
    S::transpose(sum);
  }

  // Outputs [o + n, o + n + 2).
  void write(int n, int64_t o, int64_t i, int count) {
    const int64_t size = in_.out * in_.in;
    const bool direct = task_->sums == nullptr;
    Reg phase = direct ? S::load_first(task_->phase_sums + i, count) : S::zero();
    for (const int end = n + 2; n < end && o + n < end_out_; ++n) {
      const int64_t at = (o + n) * in_.in + i;
      Reg sum[4];
      for (int part = 0; part < kParts<complex>; ++part) sum[part] = sums_[part][n];
      if (direct)
        weight_gradients<float, complex>(f_, task_->model * size + at, count, S::load_first(task_->gate + i, count),
                                         sum, phase);
      else
        for (int part = 0; part < kParts<complex>; ++part)
          S::store_first(task_->sums + part * size + at, sum[part], count);
    }
    if (direct) S::store_first(task_->phase_sums + i, phase, count);
  }

  const NpuBackward<float>& f_;
  const NpuInputs<float>& in_;
  const GroupTask<float>* task_ = nullptr;
  Blocks blocks_{};
  bool last_ = false;
  int64_t out_ = 0, end_out_ = 0, i_ = 0;
  int at_ = 0;  // of the next slice
  Reg sums_[4][kTile];
};

}  // namespace
}  // namespace NPU_ISA
}  // namespace npu
