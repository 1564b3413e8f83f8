// Forward of the Neural Power Unit family by tile products; the formulas and notation stand in npu_forward.cpp.
//
// A chunk of rows becomes panels of L and m (A), a block of inputs at a time. For each 16 outs (RealNPU: 32) the
// block's weights are packed (B) and multiplied with all of the chunk's rows, two tiles of rows at a time, while they
// stay in the second-level cache. A product has two columns of tiles:
//
//   NPU        L (Wr, Wi)'  and  m (-pi ghat Wi, pi ghat Wr)'  add to (P, Q)
//   RealNPU    L (Wr)'  gives P,  m (pi ghat Wr)'  gives Q,  of two tiles of outs each
//
// Two tiles of rows without a negative input leave out their mask products.
#include <vector>

#include "npu_forward.h"
#include "npu_tiles.h"
#include "tiles.h"

namespace npu {
namespace NPU_ISA {
namespace {

using tiles::Ranges;
using tiles::Reg;
using tiles::S;

constexpr int64_t kPairRows = 2 * kTile;
constexpr int64_t kMostRows = 512;  // of a chunk
// Inputs of a block: L and m of a chunk, in three terms and one, are 1 MiB then, the packed weights 96 KiB.
constexpr int64_t kInBlock = 256;
// Outs of a task: P and Q of a chunk are 4 MiB then, where they are kept from block to block.
constexpr int64_t kMostOuts = 1024;
// Fewer rows than these pack more than they multiply; threads then share the outs.
constexpr int64_t kLeastRows = 128;

template <int terms, bool complex>
class Chunk {
  static constexpr int kUnitOuts = complex ? kTile : 2 * kTile;
  static constexpr int64_t kUnitSize = complex ? kBlockSize : 2 * kBlockSize;  // P and Q of two tiles of rows

 public:
  static constexpr int64_t kOutStep = kUnitOuts;

  Chunk(const NpuForward<float>& f, int64_t rows, int64_t outs)
      : f_(f),
        in_(f.inputs),
        pairs_(ceil_div(rows, kPairRows)),
        k_tiles_(ceil_div(least(in_.in, kInBlock), kTileDepth)),
        log_r_(pairs_ * 2 * k_tiles_ * terms * kTileSize),
        mask_(pairs_ * 2 * k_tiles_ * kTileSize),
        weights_(4 * k_tiles_ * terms * kTileSize),
        sums_((in_.in <= kInBlock ? 1 : ceil_div(outs, kUnitOuts)) * pairs_ * kUnitSize),
        negative_(size_t(pairs_)) {}

  void run(int64_t model, int64_t row, int64_t end_row, int64_t first_out, int64_t end_out, const float* gate,
           const tiles::Engine& engine, const Ranges& ranges) {
    Ranges::Largest largest;
    const int64_t pairs = ceil_div(end_row - row, kPairRows);
    int64_t i0 = 0;
    do {
      const int64_t ins = least(kInBlock, in_.in - i0);
      const bool last = i0 + ins == in_.in;
      for (int64_t p = 0; p < pairs; ++p) turn(model, row, end_row, p, i0, ins, gate, largest);
      float* sums = sums_;
      for (int64_t o = first_out; o < end_out; o += kUnitOuts) {
        pack(model, o, end_out, i0, ins, gate + i0, largest);
        for (int64_t p = 0; p < pairs; ++p) {
          multiply(p, ceil_div(ins, kTileDepth), i0 > 0, sums + p * kUnitSize, engine);
          if (last) finish(sums + p * kUnitSize, model, row + p * kPairRows, end_row, o, end_out);
        }
        if (in_.in > kInBlock) sums += pairs * kUnitSize;
      }
      i0 += kInBlock;
    } while (i0 < in_.in);
    ranges.operand(model, largest);
  }

 private:
  Bf16* log_panel(int64_t p, int h) const { return log_r_ + (p * 2 + h) * k_tiles_ * terms * kTileSize; }
  Bf16* mask_panel(int64_t p, int h) const { return mask_ + (p * 2 + h) * k_tiles_ * kTileSize; }
  // Packed weights of the product with L (0) or m (1), of a column of tiles.
  Bf16* weight_panel(int product, int column) const {
    return weights_ + (product * 2 + column) * k_tiles_ * terms * kTileSize;
  }

  // L and m of the p-th two tiles of rows; zero outside.
  void turn(int64_t model, int64_t first_row, int64_t end_row, int64_t p, int64_t i0, int64_t ins, const float* gate,
            Ranges::Largest& largest) {
    const Reg one = S::set1(1), eps = S::set1(in_.eps);
    bool negative = false;
    for (int64_t n = 0; n < kPairRows; ++n) {
      const int64_t b = first_row + p * kPairRows + n;
      const float* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + b) * in_.in + i0;
      Bf16* l = log_panel(p, int(n / kTile)) + n % kTile * kTileDepth;
      Bf16* m = mask_panel(p, int(n / kTile)) + n % kTile * kTileDepth;
      for (int64_t i = 0; i < ins; i += kTileDepth, l += terms * kTileSize, m += kTileSize) {
        Reg log_r[2] = {};
        S::Mask mask[2] = {};
        for (int v = 0; b < end_row && v < 2; ++v) {
          const int count = int(most<int64_t>(0, least<int64_t>(kTile, ins - i - v * kTile)));
          const Reg g = S::load_first(gate + i0 + i + v * kTile, count);  // zero behind I: r = 1, L = 0
          const Reg value = S::load_first(x + i + v * kTile, count);
          log_r[v] = VectorMath<float>::log(S::fma(g, S::abs(value) + eps, one - g));
          negative |= S::store_negative(&mask[v], value);
          largest.see(log_r[v]);
        }
        tiles::split_row<terms>(log_r[0], log_r[1], l);
        tiles::mask_row(mask[0], mask[1], m);
      }
    }
    negative_[size_t(p)] = negative;
  }

  void pack(int64_t model, int64_t o, int64_t end_out, int64_t i0, int64_t ins, const float* gate,
            Ranges::Largest& largest) {
    const int64_t at = model * in_.out * in_.in + i0;
    if constexpr (complex) {
      pack_tile<false>(in_.weight_re + at, o, end_out, ins, gate, 0, 1, largest);
      pack_tile<true>(in_.weight_im + at, o, end_out, ins, gate, 1, 0, largest);
    } else {
      pack_tile<false>(in_.weight_re + at, o, end_out, ins, gate, 0, 0, largest);
      pack_tile<false>(in_.weight_re + at, o + kTile, end_out, ins, gate, 1, 1, largest);
    }
  }

  // Outs [o, o + 16) of w as a column of the product with L, and pi ghat w, or -pi ghat w, as one of that with m.
  template <bool minus>
  void pack_tile(const float* w, int64_t o, int64_t end_out, int64_t ins, const float* gate, int column,
                 int mask_column, Ranges::Largest& largest) const {
    const int outs = int(most<int64_t>(0, least<int64_t>(kTile, end_out - o)));
    Bf16 *reals = weight_panel(0, column), *phases = weight_panel(1, mask_column);
    for (int64_t i = 0; i < ins; i += kTileDepth, reals += terms * kTileSize, phases += terms * kTileSize) {
      const int count = int(least<int64_t>(kTileDepth, ins - i));
      Reg of_input[kTileDepth] = {};
      load_columns<float>(w + o * in_.in + i, in_.in, outs, least(count, kTile), of_input);
      if (count > kTile) load_columns<float>(w + o * in_.in + i + kTile, in_.in, outs, count - kTile, of_input + kTile);
      Reg turn[kTileDepth] = {};
      for (int n = 0; n < count; ++n) {
        largest.see(of_input[n]);
        const float phase = float(kPi) * gate[i + n];
        turn[n] = S::set1(minus ? -phase : phase) * of_input[n];
      }
      for (int n = 0; n < kTileDepth; n += 2) {
        tiles::split_pair<terms>(of_input[n], of_input[n + 1], reals + n * kTile);
        tiles::split_pair<terms>(turn[n], turn[n + 1], phases + n * kTile);
      }
    }
  }

  void multiply(int64_t p, int64_t k_tiles, bool resume, float* sums, const tiles::Engine& engine) const {
    engine.multiply<terms, terms>({log_panel(p, 0), log_panel(p, 1)}, {weight_panel(0, 0), weight_panel(0, 1)}, k_tiles,
                                  resume, sums);
    const Bf16* const masks[2] = {mask_panel(p, 0), mask_panel(p, 1)};
    const Bf16* const phases[2] = {weight_panel(1, 0), weight_panel(1, 1)};
    float* turned = complex ? sums : sums + kBlockSize;
    if (negative_[size_t(p)]) engine.multiply<1, terms>(masks, phases, k_tiles, complex || resume, turned);
    else if (!complex && !resume) std::memset(turned, 0, size_t(kBlockSize) * sizeof(float));
  }

  // y and s of two tiles of rows.
  void finish(const float* sums, int64_t model, int64_t row, int64_t end_row, int64_t o, int64_t end_out) const {
    for (int64_t n = 0; n < least(kPairRows, end_row - row); ++n) {
      const int64_t to = (model * in_.rows + row + n) * in_.out + o;
      const float* block = sums + (n / kTile * 2 * kTile + n % kTile) * kTile;
      for (int column = 0; column < kUnitOuts / kTile; ++column) {
        const int count = int(least<int64_t>(kTile, end_out - o - column * kTile));
        if (count <= 0) break;
        const float* p = block + column * kTile * kTile;
        const float* q = complex ? p + kTile * kTile : p + kBlockSize;
        Reg y, s;
        outputs<float>(S::load(p), S::load(q), &y, &s);
        S::store_first(f_.y + to + column * kTile, y, count);
        if (f_.s != nullptr) S::store_first(f_.s + to + column * kTile, s, count);
      }
    }
  }

  const NpuForward<float>& f_;
  const NpuInputs<float>& in_;
  const int64_t pairs_, k_tiles_;  // of a block
  Scratch<Bf16> log_r_, mask_, weights_;
  Scratch<float> sums_;
  std::vector<uint8_t> negative_;  // of two tiles of rows: any x < 0 in this block
};

template <int terms, bool complex>
void forward(const NpuForward<float>& f, const Parallel& parallel, const Ranges& ranges) {
  using Tiles = Chunk<terms, complex>;
  const NpuInputs<float>& in = f.inputs;
  // Outputs do not meet one another: how they are cut into tasks may follow from the number of threads.
  int64_t rows = kMostRows, outs = kMostOuts;
  if (parallel.threads > 1) {
    const int64_t wanted = 2 * parallel.threads;
    rows = least(kMostRows, most(kLeastRows, round_up(ceil_div(in.rows * in.models, wanted), kPairRows)));
    const int64_t by_rows = most<int64_t>(1, in.models * ceil_div(in.rows, rows));
    outs = least(kMostOuts, most(Tiles::kOutStep, round_up(ceil_div(in.out * by_rows, wanted), Tiles::kOutStep)));
  }
  const int64_t chunks = ceil_div(in.rows, rows), ranges_of_outs = ceil_div(in.out, outs);
  parallel.over(in.models * chunks * ranges_of_outs, [&](int64_t begin, int64_t end) {
    const tiles::Engine engine;
    Tiles chunk(f, least(rows, in.rows), least(outs, in.out));
    Scratch<float> gate(in.in);
    int64_t gate_model = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / (chunks * ranges_of_outs), row = task / ranges_of_outs % chunks * rows;
      const int64_t o = task % ranges_of_outs * outs;
      for (int64_t i = 0; model != gate_model && i < in.in; ++i)
        gate[i] = in.gate == nullptr ? 1.0f : clamp_gate(in.gate[model * in.in + i]);
      gate_model = model;
      chunk.run(model, row, least(row + rows, in.rows), o, least(o + outs, in.out), gate, engine, ranges);
    }
  });
}

template <int terms>
void forward(const NpuForward<float>& f, const Parallel& parallel, const Ranges& ranges) {
  if (f.inputs.weight_im != nullptr) forward<terms, true>(f, parallel, ranges);
  else forward<terms, false>(f, parallel, ranges);
}

}  // namespace

void npu_forward(const NpuForward<float>& f, const Parallel& parallel) {
  const NpuInputs<float>& in = f.inputs;
  const Ranges ranges(in.models);
  if (in.terms == 1) forward<1>(f, parallel, ranges);
  else if (in.terms == 2) forward<2>(f, parallel, ranges);
  else forward<3>(f, parallel, ranges);
  for (int64_t model = 0; model < in.models; ++model) {
    if (ranges.tame(model)) continue;
    const int64_t at = model * in.rows * in.out;
    avx512::npu_forward<float>({one_model(in, model), f.y + at, f.s == nullptr ? nullptr : f.s + at}, parallel);
  }
}

}  // namespace NPU_ISA
}  // namespace npu
