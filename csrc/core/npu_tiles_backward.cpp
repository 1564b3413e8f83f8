// Backward of the Neural Power Unit family by tile products; the algebra stands in npu_backward.cpp.
//
// Each step takes a chunk of rows and a block of outs. Its dP and dQ are packed twice: as A panels where k runs over
// outs, for dL = dP Wr + dQ Wi, whose B are the weights of 32 inputs; and as B panels where k runs over rows, for the
// weight sums, whose A are L and m of 32 inputs, turned. The 2 x 2 tiles of a product:
//
//   dL         two tiles of rows, two of inputs
//   sums, NPU       of two tiles of inputs: L' with (dP, dQ) of one tile of outs gives (SP, SQ), m' with them (MP, MQ)
//   sums, RealNPU   of two tiles of inputs: L' with dP of two tiles of outs gives SP, m' with dQ MQ
//
// A chunk's inputs without a negative value leave out their mask products.
#include "npu_backward_groups.h"
#include "npu_tiles.h"
#include "tiles.h"

namespace npu {
namespace NPU_ISA {
namespace {

using tiles::Ranges;
using tiles::Reg;
using tiles::S;

constexpr int64_t kPair = 2 * kTile;  // rows, or inputs, of two tiles
// Rows of a chunk and outs of a block: dP and dQ, packed twice in three terms, are 1.5 MiB then.
constexpr int64_t kMostRows = 256;
constexpr int64_t kOutBlock = 256;
constexpr int64_t kMostSpread = int64_t(1) << 20;  // floats of dL that are kept from block to block

template <int terms, bool complex>
class Group {
  static constexpr int kUnitOuts = complex ? kTile : 2 * kTile;
  static constexpr int kUnitTiles = kUnitOuts / kTile;
  static constexpr int kWeights = complex ? 2 : 1;

 public:
  static constexpr bool kShares = true;
  static constexpr int64_t kSpan = 2048;
  static bool writes_gradients(const NpuBackward<float>&) { return true; }

  Group(const NpuBackward<float>& f, const Ranges& ranges) : f_(f), in_(f.inputs), ranges_(ranges) {}

  void run(const GroupTask<float>& task, const Parallel& inner) const {
    std::memset(task.phase_sums, 0, size_t(in_.in) * sizeof(float));
    const int64_t rows = task.end - task.begin, pairs = ceil_div(in_.in, kPair);
    const int64_t chunks = most<int64_t>(1, ceil_div(rows, most_rows(in_)));
    const int64_t chunk_rows = round_up(ceil_div(rows, chunks), kPair);
    const int64_t block = chunk_rows * least(kOutBlock, round_up(in_.out, kPair)) * terms;
    Scratch<Bf16> by_rows(task.want_spread ? kWeights * block : 0), by_outs(task.want_sums ? 2 * block : 0);
    Scratch<float> spread_sums(in_.out > kOutBlock && task.want_spread ? chunk_rows * pairs * kPair : 0);
    // Weights that several chunks meet are packed once.
    const bool ahead = task.want_spread && chunks > 1;
    Scratch<Bf16> weights(ahead ? pairs * weights_size() : 0);
    inner.over(ahead ? pairs : 0, [&](int64_t begin, int64_t end) {
      Ranges::Largest largest;
      for (int64_t pair = begin; pair < end; ++pair)
        pack(task.model, pair, 0, in_.out, weights + pair * weights_size(), largest);
      ranges_.operand(task.model, largest);
    });
    // Sums that several chunks add to stay blocks of tiles until the last.
    Scratch<float> kept(task.want_sums && chunks > 1 ? pairs * units() * 2 * kBlockSize : 0);
    for (int64_t row = task.begin; row < task.end; row += chunk_rows) {
      Chunk c;
      c.row = row;
      c.first = row == task.begin;
      c.last = row + chunk_rows >= task.end;
      c.kept = chunks > 1 ? static_cast<float*>(kept) : nullptr;
      c.rows = least(chunk_rows, task.end - row);
      c.by_rows = task.want_spread ? static_cast<Bf16*>(by_rows) : nullptr;
      c.by_outs = task.want_sums ? static_cast<Bf16*>(by_outs) : nullptr;
      c.weights = ahead ? static_cast<const Bf16*>(weights) : nullptr;
      c.spread_sums = spread_sums;
      for (c.out = 0; c.out < in_.out; c.out += kOutBlock) {
        c.outs = least(kOutBlock, in_.out - c.out);
        inner.over(c.row_pairs(), [&](int64_t begin, int64_t end) { gradients(task, c, begin * kPair, end * kPair); });
        if (task.want_spread) inner.over(pairs, [&](int64_t begin, int64_t end) { spread(task, c, begin, end); });
        if (task.want_sums) inner.over(pairs, [&](int64_t begin, int64_t end) { sum(task, c, begin, end); });
      }
    }
  }

 private:
  struct Chunk {
    int64_t row, rows;    // the first of the model's rows, and how many
    bool first, last;     // of the group
    int64_t out, outs;    // of the block
    Bf16* by_rows;        // A panels of dP, and for the NPU of dQ; null: not wanted
    Bf16* by_outs;        // B panels of dP, then of dQ; null: not wanted
    const Bf16* weights;  // of all pairs of inputs; null: to be packed
    float* kept;          // the sums' blocks: [two tiles of inputs][unit of outs][real, mask]; null: the only chunk
    float* spread_sums;   // dL's blocks: [two tiles of inputs][two tiles of rows]

    int64_t out_depth() const { return ceil_div(outs, kTileDepth); }  // k tiles of dL
    int64_t row_depth() const { return ceil_div(rows, kTileDepth); }  // k tiles of the sums
    int64_t row_pairs() const { return ceil_div(rows, kPair); }
    // dP (0) and dQ (1) of a tile of rows, and of a tile of outs.
    Bf16* of_rows(int part, int64_t tile) const {
      return by_rows + (part * 2 * row_pairs() + tile) * out_depth() * terms * kTileSize;
    }
    Bf16* of_outs(int part, int64_t tile) const {
      return by_outs + (part * 2 * out_depth() + tile) * row_depth() * terms * kTileSize;
    }
  };

  // Packed weights of two tiles of inputs: [re, im][tile of inputs][k tile of outs].
  int64_t weight_panel() const { return ceil_div(in_.out, kTileDepth) * terms * kTileSize; }
  int64_t weights_size() const { return kWeights * 2 * weight_panel(); }
  int64_t units() const { return ceil_div(in_.out, kUnitOuts); }

  static int64_t most_rows(const NpuInputs<float>& in) {
    return most(kPair, least(kMostRows, kMostSpread / most<int64_t>(in.in, 1) / kPair * kPair));
  }

  // dP and dQ of up to 16 outs of a row; zero outside.
  NPU_INLINE void gradients(const GroupTask<float>& task, const Chunk& c, int64_t b, int64_t o, Reg* dp,
                            Reg* dq) const {
    const int count = int(most<int64_t>(0, least<int64_t>(kTile, c.outs - o)));
    *dp = *dq = S::zero();
    if (b >= c.rows || count == 0) return;
    const int64_t at = (task.model * in_.rows + c.row + b) * in_.out + c.out + o;
    const Reg grad_y = S::load_first(f_.grad_y + at, count);
    *dp = grad_y * S::load_first(f_.y + at, count);
    *dq = -grad_y * S::load_first(f_.s + at, count);
  }

  // Rows [begin, end) of the chunk, packed in the wanted ways.
  void gradients(const GroupTask<float>& task, const Chunk& c, int64_t begin, int64_t end) const {
    Ranges::Largest largest;
    for (int64_t b = begin; b < end; b += 2) {
      for (int64_t k = 0; k < c.out_depth(); ++k) {
        Reg of_row[2][2][2];  // [dP, dQ][row][half]
        for (int n = 0; n < 4; ++n) {
          Reg *dp = &of_row[0][n / 2][n % 2], *dq = &of_row[1][n / 2][n % 2];
          gradients(task, c, b + n / 2, k * kTileDepth + n % 2 * kTile, dp, dq);
          largest.see(*dp);
          if (complex || c.by_outs != nullptr) largest.see(*dq);
        }
        for (int part = 0; part < 2; ++part) {
          Bf16 *row = nullptr, *first = nullptr, *second = nullptr;
          if (c.by_rows != nullptr && part < kWeights)
            row = c.of_rows(part, b / kTile) + k * terms * kTileSize + b % kTile * kTileDepth;
          if (c.by_outs != nullptr) {
            const int64_t at = b / kTileDepth * terms * kTileSize + b % kTileDepth * kTile;
            first = c.of_outs(part, 2 * k) + at;
            second = c.of_outs(part, 2 * k + 1) + at;
          }
          tiles::split_rows<terms>(of_row[part][0], of_row[part][1], row, first, second);
        }
      }
    }
    ranges_.gradient(task.model, largest);
  }

  // The block's part of dL of the inputs of pairs [begin, end), finished after the last block.
  void spread(const GroupTask<float>& task, const Chunk& c, int64_t begin, int64_t end) const {
    const tiles::Engine engine;
    Ranges::Largest largest;
    Scratch<Bf16> own(c.weights == nullptr ? weights_size() : 0);
    alignas(64) float block[kBlockSize];
    for (int64_t pair = begin; pair < end; ++pair) {
      if (c.weights == nullptr) pack(task.model, pair, c.out, c.outs, own, largest);
      const Bf16* weights = c.weights == nullptr ? own : c.weights + pair * weights_size();
      weights += c.out / kTileDepth * terms * kTileSize;
      const bool first = c.out == 0, last = c.out + c.outs == in_.out;
      for (int64_t rows = 0; rows < c.row_pairs(); ++rows) {
        float* sums = first && last ? block : c.spread_sums + (pair * c.row_pairs() + rows) * kBlockSize;
        for (int part = 0; part < kWeights; ++part) {
          const Bf16* const a[2] = {c.of_rows(part, 2 * rows), c.of_rows(part, 2 * rows + 1)};
          const Bf16* const b[2] = {weights + 2 * part * weight_panel(), weights + (2 * part + 1) * weight_panel()};
          engine.multiply<terms, terms>(a, b, c.out_depth(), part > 0 || !first, sums);
        }
        if (last) finish(task, c, rows * kPair, pair * kPair, sums);
      }
    }
    ranges_.operand(task.model, largest);
  }

  // Weights of outs [out, out + outs) and of two tiles of inputs as B panels.
  void pack(int64_t model, int64_t pair, int64_t out, int64_t outs, Bf16* to, Ranges::Largest& largest) const {
    to += out / kTileDepth * terms * kTileSize;
    for (int n = 0; n < kWeights * 2; ++n, to += weight_panel()) {
      const int64_t i = pair * kPair + n % 2 * kTile;
      const float* w = (n < 2 ? in_.weight_re : in_.weight_im) + (model * in_.out + out) * in_.in + i;
      const int count = int(most<int64_t>(0, least<int64_t>(kTile, in_.in - i)));
      for (int64_t o = 0; o < round_up(outs, kTileDepth); o += 2) {
        Reg row[2] = {};
        for (int h = 0; h < 2 && o + h < outs && count > 0; ++h) {
          row[h] = S::load_first(w + (o + h) * in_.in, count);
          largest.see(row[h]);
        }
        tiles::split_pair<terms>(row[0], row[1], to + o / kTileDepth * terms * kTileSize + o % kTileDepth * kTile);
      }
    }
  }

  // dx and the gate's sums of two tiles of rows and of inputs.
  void finish(const GroupTask<float>& task, const Chunk& c, int64_t b, int64_t i0, const float* sums) const {
    const Reg one = S::set1(1), eps = S::set1(in_.eps);
    const int64_t rows = least(kPair, c.rows - b), row = (in_.shared_x ? 0 : task.model * in_.rows) + c.row + b;
    for (int v = 0; v < 2; ++v) {
      const int64_t i = i0 + v * kTile;
      const int count = int(least<int64_t>(kTile, in_.in - i));
      if (count <= 0) break;
      const Reg g = S::load_first(task.gate + i, count);
      Reg gate_sums[2] = {};  // of a tile of rows each: shorter runs round less
      for (int64_t n = 0; n < rows; ++n) {
        const Reg dl = S::load(sums + (n / kTile * 2 * kTile + v * kTile + n % kTile) * kTile);
        const Reg x = S::load_first(in_.x + (row + n) * in_.in + i, count);
        const Reg dx = spread_to_x<float>(dl, x, g, one, eps, &gate_sums[n / kTile]);
        if (f_.grad_x == nullptr) continue;
        S::store_first(f_.grad_x + (task.model * in_.rows + c.row + b + n) * in_.in + i, dx, count);
      }
      const Reg gate_sum = gate_sums[0] + gate_sums[1];
      for (int n = 0; n < count; ++n) task.gate_sums[i + n] += double(gate_sum[n]);
    }
  }

  // The chunk's part of the weight sums of the block's outs and of the inputs of pairs [begin, end).
  void sum(const GroupTask<float>& task, const Chunk& c, int64_t begin, int64_t end) const {
    const tiles::Engine engine;
    Ranges::Largest largest;
    const int64_t depth = c.row_depth(), panel = depth * terms * kTileSize, mask_panel = depth * kTileSize;
    Scratch<Bf16> log_r(2 * panel), mask(2 * mask_panel);
    alignas(64) float own[2 * kBlockSize];
    const Bf16* const logs[2] = {log_r, log_r + panel};
    const Bf16* const masks[2] = {mask, mask + mask_panel};
    for (int64_t pair = begin; pair < end; ++pair) {
      bool negative = false;
      for (int v = 0; v < 2; ++v)
        negative |= turn(task, c, pair * kPair + v * kTile, log_r + v * panel, mask + v * mask_panel, largest);
      for (int64_t tile = 0; tile < ceil_div(c.outs, kTile); tile += kUnitTiles) {
        const Bf16* const p[2] = {c.of_outs(0, tile), c.of_outs(complex ? 1 : 0, complex ? tile : tile + 1)};
        float* reals =
            c.kept == nullptr ? own : c.kept + (pair * units() + (c.out / kTile + tile) / kUnitTiles) * 2 * kBlockSize;
        float* masked = reals + kBlockSize;
        multiply<terms>(engine, logs, p, c, reals);
        const Bf16* const q[2] = {c.of_outs(complex ? 0 : 1, tile), c.of_outs(1, complex ? tile : tile + 1)};
        if (negative) multiply<1>(engine, masks, q, c, masked);
        else if (c.first) std::memset(masked, 0, size_t(kBlockSize) * sizeof(float));
        for (int n = 0; c.last && n < kUnitTiles; ++n)
          write(task, c, (tile + n) * kTile, pair * kPair, n, reals, masked);
      }
    }
    ranges_.operand(task.model, largest);
  }

  // The chunk's products, added to those of the chunks before: an accumulator that went on from chunk to chunk would
  // round every addition to the growing sum of all rows.
  template <int a_terms>
  static void multiply(const tiles::Engine& engine, const Bf16* const (&a)[2], const Bf16* const (&b)[2],
                       const Chunk& c, float* sums) {
    alignas(64) float own[kBlockSize];
    engine.multiply<a_terms, terms>(a, b, c.row_depth(), false, c.first ? sums : own);
    for (int64_t n = 0; !c.first && n < kBlockSize; n += kTile)
      S::store(sums + n, S::load(sums + n) + S::load(own + n));
  }

  // L and m of all rows and of up to 16 inputs from i on, turned, as A panels; whether any x is negative.
  bool turn(const GroupTask<float>& task, const Chunk& c, int64_t i, Bf16* log_r, Bf16* mask,
            Ranges::Largest& largest) const {
    const Reg one = S::set1(1), eps = S::set1(in_.eps);
    const int count = int(most<int64_t>(0, least<int64_t>(kTile, in_.in - i)));
    const float* x = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + c.row) * in_.in + i;
    bool negative = false;
    for (int64_t k = 0; k < c.row_depth(); ++k, log_r += terms * kTileSize, mask += kTileSize) {
      Reg value[kTileDepth] = {};
      const int rows = int(least<int64_t>(kTileDepth, c.rows - k * kTileDepth));
      for (int n = 0; n < rows && count > 0; ++n) value[n] = S::load_first(x + (k * kTileDepth + n) * in_.in, count);
      S::transpose(value);
      S::transpose(value + kTile);
      for (int n = 0; n < kTile; ++n) {
        Reg l[2] = {};
        S::Mask m[2] = {};
        const Reg g = S::set1(n < count ? task.gate[i + n] : 0);
        for (int v = 0; v < 2 && n < count; ++v) {
          const Reg log = VectorMath<float>::log(S::fma(g, S::abs(value[v * kTile + n]) + eps, one - g));
          l[v] = tiles::first_lanes(log, rows - v * kTile);
          negative |= S::store_negative(&m[v], value[v * kTile + n]);
          largest.see(l[v]);
        }
        tiles::split_row<terms>(l[0], l[1], log_r + n * kTileDepth);
        tiles::mask_row(m[0], m[1], mask + n * kTileDepth);
      }
    }
    return negative;
  }

  // Writes the weight sums of a tile of outs, from o on in this block, and of two of inputs, or their gradients. `unit`
  // is the tile of the products' unit.
  void write(const GroupTask<float>& task, const Chunk& c, int64_t o, int64_t i0, int unit, const float* reals,
             const float* masked) const {
    const int64_t size = in_.out * in_.in;
    for (int v = 0; v < 2; ++v) {
      const int64_t i = i0 + v * kTile;
      const int count = int(least<int64_t>(kTile, in_.in - i));
      if (count <= 0) break;
      constexpr int64_t kSecond = kTile * kTile;  // the second column of tiles
      const int64_t from = v * 2 * kSecond + unit * kSecond;
      Reg sums[4][kTile];
      turn_back(reals + from, sums[kSP]);
      turn_back(masked + from + (complex ? kSecond : 0), sums[kMQ]);
      if constexpr (complex) {
        turn_back(reals + from + kSecond, sums[kSQ]);
        turn_back(masked + from, sums[kMP]);
      }
      for (int64_t n = 0; n < least<int64_t>(kTile, c.outs - o); ++n) {
        const int64_t at = (c.out + o + n) * in_.in + i;
        if (task.sums == nullptr) {
          Reg sum[4];
          for (int part = 0; part < kParts<complex>; ++part) sum[part] = sums[part][n];
          weight_gradients<float, complex>(f_, task.model * size + at, count, S::load_first(task.gate + i, count), sum,
                                           task.phase_sums + i);
          continue;
        }
        for (int part = 0; part < kParts<complex>; ++part) {
          S::store_first(task.sums + part * size + at, sums[part][n], count);
        }
      }
    }
  }
  // A tile of inputs x outs to registers of one out each.
  static NPU_INLINE void turn_back(const float* tile, Reg* of_out) {
    for (int n = 0; n < kTile; ++n) of_out[n] = S::load(tile + n * kTile);
    S::transpose(of_out);
  }

  const NpuBackward<float>& f_;
  const NpuInputs<float>& in_;
  const Ranges& ranges_;
};

template <int terms>
void backward(const NpuBackward<float>& f, const Parallel& parallel, const Ranges& ranges) {
  if (f.inputs.weight_im != nullptr)
    BackwardGroups<float, true>(f, parallel).run([&](int64_t) { return Group<terms, true>(f, ranges); });
  else BackwardGroups<float, false>(f, parallel).run([&](int64_t) { return Group<terms, false>(f, ranges); });
}

}  // namespace

void npu_backward(const NpuBackward<float>& f, const Parallel& parallel) {
  const NpuInputs<float>& in = f.inputs;
  const Ranges ranges(in.models);
  if (in.terms == 1) backward<1>(f, parallel, ranges);
  else if (in.terms == 2) backward<2>(f, parallel, ranges);
  else backward<3>(f, parallel, ranges);
  for (int64_t model = 0; model < in.models; ++model) {
    if (ranges.tame(model)) continue;
    const int64_t results = model * in.rows * in.out, weights = model * in.out * in.in;
    const auto from = [](float* p, int64_t at) { return p == nullptr ? nullptr : p + at; };
    avx512::npu_backward<float>(
        {one_model(in, model), f.grad_y + results, f.y + results, f.s + results, f.straight_through,
         from(f.grad_x, model * in.rows * in.in), from(f.grad_weight_re, weights), from(f.grad_weight_im, weights),
         from(f.grad_gate, model * in.in)},
        parallel);
  }
}

}  // namespace NPU_ISA
}  // namespace npu
