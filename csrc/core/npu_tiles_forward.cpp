// Forward of the Neural Power Unit family by tile products; the formulas and notation stand in npu_forward.cpp.
//
// A chunk of rows becomes panels of L and m (A), a block of inputs at a time. The block's weights of 16 outs (RealNPU:
// 32) are packed (B), once for all chunks where there are several, and meet all of the chunk's rows, two tiles of rows
// at a time. A product has two columns of tiles:
//
//   NPU        L (Wr, Wi)'  and  m (-pi ghat Wi, pi ghat Wr)'  add to (P, Q)
//   RealNPU    L (Wr)'  gives P,  m (pi ghat Wr)'  gives Q,  of two tiles of outs each
//
// Two tiles of rows without a negative input leave out their mask products.
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
constexpr int64_t kMostRows = 256;  // of a chunk
// Inputs of a block: L and m of a chunk, in three terms and one, are 512 KiB then, the packed weights 96 KiB.
constexpr int64_t kInBlock = 256;
// Outs whose P and Q wait for one another, so that results are written in runs of four cache lines.
constexpr int64_t kFinishOuts = 64;
// bfloat16 that weights may take that are packed for all chunks.
constexpr int64_t kMostPacked = int64_t(1) << 25;
// Outs of a task: P and Q of a chunk are 4 MiB then, where they are kept from block to block.
constexpr int64_t kMostOuts = 1024;
// Fewer rows than these pack more than they multiply; threads then share the outs.
constexpr int64_t kLeastRows = 128;

// Weights as B panels. A unit of outs has four: a product (with L, with m) has two columns of tiles.
template <int terms, bool complex>
class Weights {
 public:
  static constexpr int kUnitOuts = complex ? kTile : 2 * kTile;

  explicit Weights(const NpuInputs<float>& in) : in_(in), k_tiles_(ceil_div(in.in, kTileDepth)) {}

  int64_t unit_size() const { return 4 * k_tiles_ * terms * kTileSize; }
  const Bf16* panel(const Bf16* unit, int product, int column) const {
    return unit + (product * 2 + column) * k_tiles_ * terms * kTileSize;
  }

  // Inputs [i0, i0 + ins) of the unit of outs that begins with o.
  void pack(int64_t model, int64_t o, int64_t i0, int64_t ins, const float* gate, Bf16* unit,
            Ranges::Largest& largest) const {
    const int64_t at = model * in_.out * in_.in + i0;
    unit += i0 / kTileDepth * terms * kTileSize;
    if constexpr (complex) {
      pack_tile<false>(in_.weight_re + at, o, ins, gate, unit, 0, 1, largest);
      pack_tile<true>(in_.weight_im + at, o, ins, gate, unit, 1, 0, largest);
    } else {
      pack_tile<false>(in_.weight_re + at, o, ins, gate, unit, 0, 0, largest);
      pack_tile<false>(in_.weight_re + at, o + kTile, ins, gate, unit, 1, 1, largest);
    }
  }

 private:
  // Outs [o, o + 16) of w as a column of the product with L, and pi ghat w, or -pi ghat w, as one of that with m.
  template <bool minus>
  void pack_tile(const float* w, int64_t o, int64_t ins, const float* gate, Bf16* unit, int column, int mask_column,
                 Ranges::Largest& largest) const {
    const int outs = int(most<int64_t>(0, least<int64_t>(kTile, in_.out - o)));
    Bf16* reals = unit + column * k_tiles_ * terms * kTileSize;
    Bf16* phases = unit + (2 + mask_column) * k_tiles_ * terms * kTileSize;
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

  const NpuInputs<float>& in_;
  const int64_t k_tiles_;
};

template <int terms, bool complex>
class Chunk {
  static constexpr int kUnitOuts = Weights<terms, complex>::kUnitOuts;
  static constexpr int64_t kUnitSize = complex ? kBlockSize : 2 * kBlockSize;  // P and Q of two tiles of rows

 public:
  // Of at most so many rows and outs; `packed` units of weights of all models, or null.
  Chunk(const NpuForward<float>& f, int64_t rows, int64_t outs, const Bf16* packed)
      : f_(f),
        in_(f.inputs),
        weights_(in_),
        packed_(packed),
        pairs_(ceil_div(rows, kPairRows)),
        k_tiles_(ceil_div(least(in_.in, kInBlock), kTileDepth)),
        kept_outs_(round_up(in_.in <= kInBlock ? least(outs, kFinishOuts) : outs, kUnitOuts)),
        log_r_(pairs_ * 2 * k_tiles_ * terms * kTileSize),
        mask_(pairs_ * 2 * k_tiles_ * kTileSize),
        own_unit_(packed == nullptr ? weights_.unit_size() : 0),
        sums_(kept_outs_ / kUnitOuts * pairs_ * kUnitSize),
        negative_(pairs_) {}

  void run(int64_t model, int64_t row, int64_t end_row, int64_t first_out, int64_t end_out, const float* gate,
           const tiles::Engine& engine, const Ranges& ranges) {
    Ranges::Largest largest;
    const int64_t pairs = ceil_div(end_row - row, kPairRows);
    int64_t i0 = 0;
    do {
      const int64_t ins = least(kInBlock, in_.in - i0);
      const bool last = i0 + ins == in_.in;
      for (int64_t p = 0; p < pairs; ++p) turn(model, row, end_row, p, i0, ins, gate, largest);
      for (int64_t o = first_out; o < end_out; o += kUnitOuts) {
        float* sums = sums_ + (o - first_out) % kept_outs_ / kUnitOuts * pairs_ * kUnitSize;
        multiply(pairs, i0, ins, unit(model, o, i0, ins, gate, largest), sums, engine);
        const int64_t done = least(o + kUnitOuts, end_out);
        if (last && (done == end_out || (done - first_out) % kFinishOuts == 0))
          finish(model, row, end_row, first_out, (done - 1 - first_out) / kFinishOuts * kFinishOuts + first_out, done);
      }
      i0 += kInBlock;
    } while (i0 < in_.in);
    ranges.operand(model, largest);
  }

 private:
  Bf16* log_panel(int64_t p, int h) const { return log_r_ + (p * 2 + h) * k_tiles_ * terms * kTileSize; }
  Bf16* mask_panel(int64_t p, int h) const { return mask_ + (p * 2 + h) * k_tiles_ * kTileSize; }

  const Bf16* unit(int64_t model, int64_t o, int64_t i0, int64_t ins, const float* gate,
                   Ranges::Largest& largest) const {
    if (packed_ != nullptr)
      return packed_ + (model * ceil_div(in_.out, kUnitOuts) + o / kUnitOuts) * weights_.unit_size();
    weights_.pack(model, o, i0, ins, gate + i0, own_unit_, largest);
    return own_unit_;
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

  // Adds a unit of outs' products with inputs [i0, i0 + ins) to the sums of all rows, or begins them.
  void multiply(int64_t pairs, int64_t i0, int64_t ins, const Bf16* unit, float* sums,
                const tiles::Engine& engine) const {
    const int64_t k_tiles = ceil_div(ins, kTileDepth), at = i0 / kTileDepth * terms * kTileSize;
    const auto columns = [&](int product, const Bf16*(&b)[2]) {
      for (int column = 0; column < 2; ++column) b[column] = weights_.panel(unit, product, column) + at;
    };
    const Bf16 *reals[2], *phases[2];
    columns(0, reals);
    columns(1, phases);
    for (int64_t p = 0; p < pairs; ++p, sums += kUnitSize) {
      engine.multiply<terms, terms>({log_panel(p, 0), log_panel(p, 1)}, reals, k_tiles, i0 > 0, sums);
      float* turned = complex ? sums : sums + kBlockSize;
      if (negative_[size_t(p)])
        engine.multiply<1, terms>({mask_panel(p, 0), mask_panel(p, 1)}, phases, k_tiles, complex || i0 > 0, turned);
      else if (!complex && i0 == 0) std::memset(turned, 0, size_t(kBlockSize) * sizeof(float));
    }
  }

  // y and s of all rows and of outs [o, end_out), the task's own beginning with first_out.
  void finish(int64_t model, int64_t row, int64_t end_row, int64_t first_out, int64_t o, int64_t end_out) const {
    const float* sums = sums_ + (o - first_out) % kept_outs_ / kUnitOuts * pairs_ * kUnitSize;
    for (int64_t n = 0; n < end_row - row; ++n) {
      const int64_t to = (model * in_.rows + row + n) * in_.out;
      const float* block = sums + n / kPairRows * kUnitSize + (n / kTile % 2 * 2 * kTile + n % kTile) * kTile;
      for (int64_t out = o; out < end_out; out += kTile) {
        const int count = int(least<int64_t>(kTile, end_out - out));
        const int64_t unit = (out - o) / kUnitOuts, column = (out - o) % kUnitOuts / kTile;
        const float* p = block + unit * pairs_ * kUnitSize + column * kTile * kTile;
        const float* q = complex ? p + kTile * kTile : p + kBlockSize;
        Reg y, s;
        outputs<float>(S::load(p), S::load(q), &y, &s);
        S::store_first(f_.y + to + out, y, count);
        if (f_.s != nullptr) S::store_first(f_.s + to + out, s, count);
      }
    }
  }

  const NpuForward<float>& f_;
  const NpuInputs<float>& in_;
  const Weights<terms, complex> weights_;
  const Bf16* const packed_;
  const int64_t pairs_, k_tiles_;  // of a block
  const int64_t kept_outs_;        // whose sums are kept at once
  Scratch<Bf16> log_r_, mask_, own_unit_;
  Scratch<float> sums_;
  Scratch<uint8_t> negative_;  // of two tiles of rows: any x < 0 in this block
};

// Calls f(task, gate) for tasks [begin, end) of n to a model.
template <typename F>
void with_gates(const NpuInputs<float>& in, int64_t begin, int64_t end, int64_t n, const F& f) {
  Scratch<float> gate(in.in);
  int64_t gate_model = -1;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t model = task / n;
    for (int64_t i = 0; model != gate_model && i < in.in; ++i)
      gate[i] = in.gate == nullptr ? 1.0f : clamp_gate(in.gate[model * in.in + i]);
    gate_model = model;
    f(task, gate);
  }
}

template <int terms, bool complex>
void forward(const NpuForward<float>& f, const Parallel& parallel, const Ranges& ranges) {
  using Packing = Weights<terms, complex>;
  const NpuInputs<float>& in = f.inputs;
  // Outputs do not meet one another: how they are cut into tasks may follow from the number of threads.
  int64_t rows = kMostRows, outs = kMostOuts;
  if (parallel.threads > 1) {
    const int64_t wanted = 2 * parallel.threads;
    rows = least(kMostRows, most(kLeastRows, round_up(ceil_div(in.rows * in.models, wanted), kPairRows)));
    const int64_t by_rows = most<int64_t>(1, in.models * ceil_div(in.rows, rows));
    outs = least(kMostOuts, most<int64_t>(Packing::kUnitOuts,
                                          round_up(ceil_div(in.out * by_rows, wanted), int64_t(Packing::kUnitOuts))));
  }
  const int64_t chunks = ceil_div(in.rows, rows), ranges_of_outs = ceil_div(in.out, outs);
  const Packing weights(in);
  const int64_t units = ceil_div(in.out, int64_t(Packing::kUnitOuts)), size = in.models * units * weights.unit_size();
  const bool ahead = chunks > 1 && size <= kMostPacked;
  Scratch<Bf16> packed(ahead ? size : 0);
  parallel.over(ahead ? in.models * units : 0, [&](int64_t begin, int64_t end) {
    with_gates(in, begin, end, units, [&](int64_t task, const float* gate) {
      Ranges::Largest largest;
      const int64_t model = task / units, o = task % units * Packing::kUnitOuts;
      weights.pack(model, o, 0, in.in, gate, packed + task * weights.unit_size(), largest);
      ranges.operand(model, largest);
    });
  });
  parallel.over(in.models * chunks * ranges_of_outs, [&](int64_t begin, int64_t end) {
    const tiles::Engine engine;
    Chunk<terms, complex> chunk(f, least(rows, in.rows), least(outs, in.out),
                                ahead ? static_cast<const Bf16*>(packed) : nullptr);
    with_gates(in, begin, end, chunks * ranges_of_outs, [&](int64_t task, const float* gate) {
      const int64_t model = task / (chunks * ranges_of_outs), row = task / ranges_of_outs % chunks * rows;
      const int64_t o = task % ranges_of_outs * outs;
      chunk.run(model, row, least(row + rows, in.rows), o, least(o + outs, in.out), gate, engine, ranges);
    });
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
