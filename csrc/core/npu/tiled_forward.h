// Side work of the forward by tile products (npu/tiled_forward.cpp): weights and inputs become panels, sums become
// results. Each class is a job in slices (npu/side_work.h).
#pragma once

#include "npu/forward.h"
#include "npu/tiles.h"

namespace npu {
namespace NPU_ISA {
namespace {

using tiles::Ranges;
using tiles::Reg;
using tiles::S;

// Inputs of a block: L and m of a chunk, in three terms and one, are 512 KiB then, the packed weights 96 KiB. With
// fewer terms there is room for more.
template <int terms>
constexpr int64_t kInBlock = terms == 3 ? 256 : 512;
// Outputs whose P and Q wait for one another, so that results are written in runs of four cache lines.
constexpr int64_t kFinishOutputs = 64;

// Where the work stands: a chunk of rows, its outputs, and a block of inputs.
struct Place {
  int64_t model, row, end_row, out, end_out, i0, ins;
  bool first, last;  // of the blocks of inputs
};

// The gates of all models, clamped; of ones where there are none.
class Gates {
 public:
  explicit Gates(const NpuInputs<float>& in)
      : stride_(in.gate == nullptr ? 0 : in.in), gates_(in.gate == nullptr ? in.in : in.models * in.in) {
    for (int64_t n = 0; n < (in.gate == nullptr ? in.in : in.models * in.in); ++n)
      gates_[n] = in.gate == nullptr ? 1.0f : clamp_gate(in.gate[n]);
  }
  const float* of(int64_t model) const { return gates_ + model * stride_; }

 private:
  const int64_t stride_;
  Scratch<float> gates_;
};

// Weights as B panels. A unit of outputs has four: a product (with L, with m) has two columns of tiles.
template <int terms, bool complex>
struct Unit {
  static constexpr int kOutputs = complex ? kTile : 2 * kTile;

  explicit Unit(const NpuInputs<float>& in) : k_tiles(ceil_div(in.in, kTileDepth)) {}
  int64_t size() const { return 4 * panel_size(); }
  int64_t panel_size() const { return k_tiles * terms * kTileSize; }
  // From the unit's beginning.
  int64_t panel(int product, int column) const { return (product * 2 + column) * panel_size(); }

  const int64_t k_tiles;
};

// Packs a block of inputs of a unit. A slice turns 16 inputs of 16 outputs, or splits four of them.
template <int terms, bool complex>
class Packer {
  using Layout = Unit<terms, complex>;

 public:
  Packer(const NpuInputs<float>& in, const Gates& gates, const Ranges& ranges)
      : in_(in), gates_(gates), ranges_(ranges), layout_(in) {}

  // Inputs [i0, i0 + ins) of the unit of outputs that begins with o.
  void begin(int64_t model, int64_t o, int64_t i0, int64_t ins, Bf16* unit) {
    model_ = model, out_ = o, i0_ = i0, ins_ = ins, unit_ = unit;
    block_ = column_ = step_ = 0;
  }
  int64_t slices() const { return 2 * blocks() * kSteps; }

  void next() {
    if (step_ == 0) load();
    else split((step_ - 1) * kSplit);
    if (++step_ < kSteps) return;
    step_ = 0;
    if (++block_ < blocks()) return;
    block_ = 0;
    if (++column_ == 2) ranges_.operand(model_, largest_), largest_ = {};
  }

 private:
  static constexpr int kSplit = 4, kSteps = 1 + kTile / kSplit;

  int64_t blocks() const { return round_up(ins_, kTileDepth) / kTile; }

  // The column's weights: its own 16 outputs (RealNPU), or the real and then the imaginary ones.
  void load() {
    const int64_t i = block_ * kTile, o = complex ? out_ : out_ + column_ * kTile;
    const float* w = complex && column_ == 1 ? in_.weight_im : in_.weight_re;
    const int count = int(max<int64_t>(0, min<int64_t>(kTile, ins_ - i)));
    const int outputs = int(max<int64_t>(0, min<int64_t>(kTile, in_.out - o)));
    for (int n = 0; n < kTile; ++n) of_input_[n] = S::zero();
    if (count > 0)
      load_columns<float>(w + (model_ * in_.out + o) * in_.in + i0_ + i, in_.in, outputs, count, of_input_);
  }

  // Inputs [n, n + kSplit) of the block as a column of the product with L, and pi ghat w, or -pi ghat w, as one of that
  // with m.
  void split(int n) {
    const int64_t i = i0_ + block_ * kTile;
    const int64_t at = i / kTileDepth * terms * kTileSize + i % kTileDepth * kTile;
    const bool turned = complex && column_ == 1;
    Bf16* reals = unit_ + layout_.panel(0, column_) + at;
    Bf16* phases = unit_ + layout_.panel(1, complex ? 1 - column_ : column_) + at;
    const float* gate = gates_.of(model_) + i;
    for (const int end = n + kSplit; n < end; n += 2) {
      Reg turn[2];
      for (int v = 0; v < 2; ++v) {
        largest_.see(of_input_[n + v]);
        const float phase = block_ * kTile + n + v < ins_ ? float(kPi) * gate[n + v] : 0.0f;
        turn[v] = S::set1(turned ? -phase : phase) * of_input_[n + v];
      }
      tiles::split_pair<terms>(of_input_[n], of_input_[n + 1], reals + n * kTile);
      tiles::split_pair<terms>(turn[0], turn[1], phases + n * kTile);
    }
  }

  const NpuInputs<float>& in_;
  const Gates& gates_;
  const Ranges& ranges_;
  const Layout layout_;
  int64_t model_ = 0, out_ = 0, i0_ = 0, ins_ = 0;
  Bf16* unit_ = nullptr;
  int64_t column_ = 0, block_ = 0;  // of the next slice
  int step_ = 0;
  Reg of_input_[kTile];
  Ranges::Largest largest_;
};

// L and m of a chunk and a block of inputs as A panels. A slice is 32 inputs of a row.
template <int terms>
class Logs {
 public:
  Logs(const NpuInputs<float>& in, int64_t rows, const Gates& gates, const Ranges& ranges)
      : in_(in),
        gates_(gates),
        ranges_(ranges),
        most_k_tiles_(ceil_div(min(in.in, kInBlock<terms>), kTileDepth)),
        log_r_(ceil_div(rows, kTilePair) * 2 * most_k_tiles_ * terms * kTileSize),
        mask_(ceil_div(rows, kTilePair) * 2 * most_k_tiles_ * kTileSize),
        negative_(ceil_div(rows, kTilePair)) {}

  void begin(const Place& place) {
    place_ = place;
    std::memset(negative_, 0, size_t(pairs()));
    begin_row(0);
  }
  const Place& place() const { return place_; }
  int64_t pairs() const { return ceil_div(place_.end_row - place_.row, kTilePair); }
  int64_t k_tiles() const { return ceil_div(place_.ins, kTileDepth); }
  int64_t slices() const { return pairs() * kTilePair * k_tiles(); }
  // Of the p-th two tiles of rows, its tile h.
  Bf16* log_panel(int64_t p, int64_t h) const { return log_r_ + (p * 2 + h) * most_k_tiles_ * terms * kTileSize; }
  Bf16* mask_panel(int64_t p, int64_t h) const { return mask_ + (p * 2 + h) * most_k_tiles_ * kTileSize; }
  bool negative(int64_t p) const { return negative_[p] != 0; }  // any x

  // Rows and inputs that are not there are zero in both.
  void next() {
    const Reg eps = S::set1(in_.eps);
    Reg log_r[2] = {};
    S::Mask mask[2] = {};
    const auto fill = [&](int v, Reg g, Reg x) __attribute__((always_inline)) {
      log_r[v] = Gate<float>(g, eps).log(x);
      *negative_row_ |= uint8_t(S::store_negative(&mask[v], x));
      largest_.see(log_r[v]);
    };
    if (in_row_ && left_ >= kTileDepth) {
      for (int v = 0; v < 2; ++v) fill(v, S::load(gate_ + v * kTile), S::load(x_ + v * kTile));
    } else if (in_row_) {
      for (int v = 0; v < 2; ++v) {
        const int count = int(max<int64_t>(0, min<int64_t>(kTile, left_ - v * kTile)));
        fill(v, S::load_first(gate_ + v * kTile, count), S::load_first(x_ + v * kTile, count));  // behind I: r = 1
      }
    }
    tiles::split_row<terms>(log_r[0], log_r[1], log_at_);
    tiles::mask_row(mask[0], mask[1], mask_at_);
    x_ += kTileDepth, gate_ += kTileDepth, log_at_ += terms * kTileSize, mask_at_ += kTileSize;
    if ((left_ -= kTileDepth) <= 0) end_row();
  }

 private:
  void begin_row(int64_t row) {
    row_ = row;
    const int64_t b = place_.row + row, pair = row / kTilePair, h = row % kTilePair / kTile;
    in_row_ = b < place_.end_row;
    x_ = in_.x + ((in_.shared_x ? 0 : place_.model * in_.rows) + b) * in_.in + place_.i0;
    gate_ = gates_.of(place_.model) + place_.i0;
    log_at_ = log_panel(pair, h) + row % kTile * kTileDepth;
    mask_at_ = mask_panel(pair, h) + row % kTile * kTileDepth;
    negative_row_ = negative_ + pair;
    left_ = place_.ins;
  }
  void end_row() {
    if (row_ + 1 < pairs() * kTilePair) return begin_row(row_ + 1);
    ranges_.operand(place_.model, largest_);
    largest_ = {};
  }

  const NpuInputs<float>& in_;
  const Gates& gates_;
  const Ranges& ranges_;
  const int64_t most_k_tiles_;
  Scratch<Bf16> log_r_, mask_;
  Scratch<uint8_t> negative_;
  Place place_{};
  // The next slice: its row, from the place's beginning, whether there is one, and inputs that are left of it.
  int64_t row_ = 0;
  bool in_row_ = false;
  int64_t left_ = 0;
  const float *x_ = nullptr, *gate_ = nullptr;
  Bf16 *log_at_ = nullptr, *mask_at_ = nullptr;
  uint8_t* negative_row_ = nullptr;
  Ranges::Largest largest_;
};

// y and s of a chunk's rows and of up to kFinishOutputs outputs, from their sums. A slice is two registers.
template <bool complex>
class Results {
  static constexpr int64_t kColumn = kTile * kTile;

 public:
  explicit Results(const NpuForward<float>& f) : f_(f) {}

  // Outputs [o, end_out); the sums of a unit of outputs, of all pairs of rows, take `unit_size`.
  void begin(const Place& place, int64_t o, int64_t end_out, const float* sums, int64_t unit_size) {
    place_ = place, out_ = o, end_out_ = end_out, sums_ = sums, unit_size_ = unit_size;
    begin_row(0);
  }
  const float* sums() const { return sums_; }
  int64_t slices() const { return (place_.end_row - place_.row) * ceil_div(end_out_ - out_, 2 * kTile); }

  void next() {
    constexpr int64_t kQ = complex ? kColumn : kBlockSize;  // from P
    const float* const second = p_ + (complex ? unit_size_ : kColumn);
    Reg y[2], s[2];
    finish_outputs<float>(S::load(p_), S::load(p_ + kQ), &y[0], &s[0]);
    if (left_ > kTile) finish_outputs<float>(S::load(second), S::load(second + kQ), &y[1], &s[1]);
    for (int v = 0; v < 2 && left_ > v * kTile; ++v) {
      const int count = int(min<int64_t>(kTile, left_ - v * kTile));
      S::store_first(f_.y + to_ + v * kTile, y[v], count);
      if (f_.s != nullptr) S::store_first(f_.s + to_ + v * kTile, s[v], count);
    }
    to_ += 2 * kTile;
    p_ += (complex ? 2 : 1) * unit_size_;
    if ((left_ -= 2 * kTile) <= 0) begin_row(row_ + 1);
  }

 private:
  void begin_row(int64_t row) {
    row_ = row;
    p_ = sums_ + row / kTilePair * (complex ? kBlockSize : 2 * kBlockSize) +
         (row % kTilePair / kTile * 2 * kTile + row % kTile) * kTile;
    to_ = (place_.model * f_.inputs.rows + place_.row + row) * f_.inputs.out + out_;
    left_ = end_out_ - out_;
  }

  const NpuForward<float>& f_;
  Place place_{};
  int64_t out_ = 0, end_out_ = 0, unit_size_ = 0;
  const float* sums_ = nullptr;
  // The next slice: its row, from the place's beginning, its sums and results, and outputs that are left of the row.
  int64_t row_ = 0, to_ = 0, left_ = 0;
  const float* p_ = nullptr;
};

}  // namespace
}  // namespace NPU_ISA
}  // namespace npu
