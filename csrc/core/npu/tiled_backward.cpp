// Backward of the Neural Power Unit family by tile products; the algebra stands in npu/backward.cpp.
//
// Each step takes a chunk of rows and a block of outputs. Its dP and dQ are packed twice: as A panels where k runs over
// outputs, for dL = dP Wr + dQ Wi, whose B are the weights of 32 inputs; and as B panels where k runs over rows, for
// the weight sums, whose A are L and m of 32 inputs, transposed. The 2 x 2 tiles of a product:
//
//   dL         two tiles of rows, two of inputs
//   sums, NPU       of two tiles of inputs: L' with (dP, dQ) of one tile of outputs gives (SP, SQ), m' with them (MP,
//   MQ) sums, RealNPU   of two tiles of inputs: L' with dP of two tiles of outputs gives SP, m' with dQ MQ
//
// A chunk's inputs without a negative value leave out their mask products. While products are made, side work
// (npu/side_work.h) turns the dL before into dx, the next inputs into L and m, and the products before into weight
// sums.
#include "npu/tiled_backward.h"

#include "npu/tiled.h"

namespace npu {
namespace NPU_ISA {
namespace {

// Rows of a chunk and outputs of a block: dP and dQ, packed twice in three terms, are 1.5 MiB then.
constexpr int64_t kMaxRows = 256;
constexpr int64_t kOutBlock = 256;
// Every chunk reads and writes the weight sums. Where they are so many floats, and dP and dQ have fewer than three
// terms, a chunk has twice as many rows.
constexpr int64_t kManySums = int64_t(1) << 18;
constexpr int64_t kMaxSpread = int64_t(1) << 20;  // floats of dL that are kept from block to block

template <int terms, bool complex>
class Group {
  static constexpr int kUnitOutputs = complex ? kTile : 2 * kTile;
  static constexpr int kWeights = complex ? 2 : 1;
  using InputPanels = TransposedPanels<terms>;

 public:
  using Order = PlainOrder<float, complex>;
  static constexpr bool kShares = true;
  static constexpr int64_t kSpan = 2048;
  static bool writes_gradients(const NpuBackward<float>&) { return true; }

  Group(const NpuBackward<float>& f, const Ranges& ranges) : f_(f), in_(f.inputs), ranges_(ranges) {}

  void run(const GroupTask<float>& task, const Parallel& inner) const {
    std::memset(task.phase_sums, 0, size_t(in_.in) * sizeof(float));
    const int64_t rows = task.end - task.begin, pairs = ceil_div(in_.in, kTilePair);
    const int64_t chunks = max<int64_t>(1, ceil_div(rows, most_rows(in_)));
    const int64_t chunk_rows = round_up(ceil_div(rows, chunks), kTilePair);
    const int64_t block = chunk_rows * min(kOutBlock, round_up(in_.out, kTilePair)) * terms;
    Scratch<Bf16> by_rows(task.want_spread ? kWeights * block : 0), by_outputs(task.want_sums ? 2 * block : 0);
    Scratch<float> spread_sums(in_.out > kOutBlock && task.want_spread ? chunk_rows * pairs * kTilePair : 0);
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
    // L and m that several blocks of outputs meet are made for the first.
    const bool again = task.want_sums && in_.out > kOutBlock;
    Scratch<Bf16> transposed(again ? pairs * InputPanels::size(chunk_rows) : 0);
    Scratch<InputPanels> places(again ? pairs : 0);
    for (int64_t pair = 0; again && pair < pairs; ++pair)
      places[pair] = {transposed + pair * InputPanels::size(chunk_rows), 0, false};
    for (int64_t row = task.begin; row < task.end; row += chunk_rows) {
      Panels c;
      c.row = row;
      c.first = row == task.begin;
      c.last = row + chunk_rows >= task.end;
      c.kept = chunks > 1 ? static_cast<float*>(kept) : nullptr;
      c.rows = min(chunk_rows, task.end - row);
      c.by_rows = task.want_spread ? static_cast<Bf16*>(by_rows) : nullptr;
      c.by_outputs = task.want_sums ? static_cast<Bf16*>(by_outputs) : nullptr;
      c.weights = ahead ? static_cast<const Bf16*>(weights) : nullptr;
      c.transposed = again ? static_cast<InputPanels*>(places) : nullptr;
      c.spread_sums = spread_sums;
      for (c.out = 0; c.out < in_.out; c.out += kOutBlock) {
        c.outputs = min(kOutBlock, in_.out - c.out);
        inner.over(c.row_pairs(),
                   [&](int64_t begin, int64_t end) { gradients(task, c, begin * kTilePair, end * kTilePair); });
        if (task.want_spread) inner.over(pairs, [&](int64_t begin, int64_t end) { spread(task, c, begin, end); });
        if (task.want_sums) inner.over(pairs, [&](int64_t begin, int64_t end) { sum(task, c, begin, end); });
      }
    }
  }

 private:
  struct Panels : Chunk {
    Bf16* by_rows;        // A panels of dP, and for the NPU of dQ; null: not wanted
    Bf16* by_outputs;     // B panels of dP, then of dQ; null: not wanted
    const Bf16* weights;  // of all pairs of inputs; null: to be packed
    float* kept;          // the sums' blocks: [two tiles of inputs][unit of outputs][real, mask]; null: the only chunk
    InputPanels* transposed;  // of all pairs of inputs; null: there is one block of outputs
    float* spread_sums;       // dL's blocks: [two tiles of inputs][two tiles of rows]

    int64_t out_depth() const { return ceil_div(outputs, kTileDepth); }  // k tiles of dL
    int64_t row_depth() const { return ceil_div(rows, kTileDepth); }     // k tiles of the sums
    int64_t row_pairs() const { return ceil_div(rows, kTilePair); }
    // dP (0) and dQ (1) of a tile of rows, and of a tile of outputs.
    Bf16* of_rows(int part, int64_t tile) const {
      return by_rows + (part * 2 * row_pairs() + tile) * out_depth() * terms * kTileSize;
    }
    Bf16* of_outputs(int part, int64_t tile) const {
      return by_outputs + (part * 2 * out_depth() + tile) * row_depth() * terms * kTileSize;
    }
  };

  // Packed weights of two tiles of inputs: [re, im][tile of inputs][k tile of outputs].
  int64_t weight_panel() const { return ceil_div(in_.out, kTileDepth) * terms * kTileSize; }
  int64_t weights_size() const { return kWeights * 2 * weight_panel(); }
  int64_t units() const { return ceil_div(in_.out, kUnitOutputs); }

  static int64_t most_rows(const NpuInputs<float>& in) {
    const int64_t rows = terms < 3 && 4 * in.in * in.out >= kManySums ? 2 * kMaxRows : kMaxRows;
    return max(kTilePair, min(rows, kMaxSpread / max<int64_t>(in.in, 1) / kTilePair * kTilePair));
  }

  // dP and dQ of up to 16 outputs of a row; zero outside.
  NPU_INLINE void gradients(const GroupTask<float>& task, const Panels& c, int64_t b, int64_t o, Reg* dp,
                            Reg* dq) const {
    const int count = int(max<int64_t>(0, min<int64_t>(kTile, c.outputs - o)));
    *dp = *dq = S::zero();
    if (b >= c.rows || count == 0) return;
    const int64_t at = (task.model * in_.rows + c.row + b) * in_.out + c.out + o;
    const Reg grad_y = S::load_first(f_.grad_y + at, count);
    *dp = grad_y * S::load_first(f_.y + at, count);
    *dq = -grad_y * S::load_first(f_.s + at, count);
  }

  // Rows [begin, end) of the chunk, packed in the wanted ways.
  void gradients(const GroupTask<float>& task, const Panels& c, int64_t begin, int64_t end) const {
    Ranges::Largest largest;
    for (int64_t b = begin; b < end; b += 2) {
      for (int64_t k = 0; k < c.out_depth(); ++k) {
        Reg of_row[2][2][2];  // [dP, dQ][row][half]
        for (int n = 0; n < 4; ++n) {
          Reg *dp = &of_row[0][n / 2][n % 2], *dq = &of_row[1][n / 2][n % 2];
          gradients(task, c, b + n / 2, k * kTileDepth + n % 2 * kTile, dp, dq);
          largest.see(*dp);
          if (complex || c.by_outputs != nullptr) largest.see(*dq);
        }
        for (int part = 0; part < 2; ++part) {
          Bf16 *row = nullptr, *first = nullptr, *second = nullptr;
          if (c.by_rows != nullptr && part < kWeights)
            row = c.of_rows(part, b / kTile) + k * terms * kTileSize + b % kTile * kTileDepth;
          if (c.by_outputs != nullptr) {
            const int64_t at = b / kTileDepth * terms * kTileSize + b % kTileDepth * kTile;
            first = c.of_outputs(part, 2 * k) + at;
            second = c.of_outputs(part, 2 * k + 1) + at;
          }
          tiles::split_rows<terms>(of_row[part][0], of_row[part][1], row, first, second);
        }
      }
    }
    ranges_.gradient(task.model, largest);
  }

  // The block's part of dL of the inputs of pairs [begin, end), finished after the last block.
  void spread(const GroupTask<float>& task, const Panels& c, int64_t begin, int64_t end) const {
    const tiles::Engine engine;
    SideWork side;
    Fetcher fetcher;
    Spread dx(f_);
    Ranges::Largest largest;
    Scratch<Bf16> own(c.weights == nullptr ? weights_size() : 0);
    alignas(64) float blocks[2][kBlockSize];
    const bool first = c.out == 0, last = c.out + c.outputs == in_.out;
    for (int64_t pair = begin; pair < end; ++pair) {
      if (c.weights == nullptr) pack(task.model, pair, c.out, c.outputs, own, largest);
      const Bf16* weights = c.weights == nullptr ? own : c.weights + pair * weights_size();
      weights += c.out / kTileDepth * terms * kTileSize;
      fetcher.begin(weights + weights_size(), c.out_depth() * terms * kTileSize, 2 * kWeights, weight_panel());
      const int64_t fetched = c.weights != nullptr && pair + 1 < end ? fetcher.slices() : 0;
      for (int64_t rows = 0; rows < c.row_pairs(); ++rows) {
        float* sums = first && last ? blocks[(pair * c.row_pairs() + rows) % 2]
                                    : c.spread_sums + (pair * c.row_pairs() + rows) * kBlockSize;
        side.add_share(fetcher, fetched, rows, c.row_pairs());
        side.spread_over(kWeights * c.out_depth() * tiles::Engine::steps<terms, terms>);
        engine.begin(!first, sums);
        for (int part = 0; part < kWeights; ++part)
          engine.add<terms, terms>({c.of_rows(part, 2 * rows), c.of_rows(part, 2 * rows + 1)},
                                   {weights + 2 * part * weight_panel(), weights + (2 * part + 1) * weight_panel()},
                                   c.out_depth(), sums, side);
        engine.end(sums);
        side.finish();
        if (!last) continue;
        dx.begin(task, c, rows * kTilePair, pair * kTilePair, sums);
        side.add(dx, dx.slices());
      }
    }
    side.finish();
    ranges_.operand(task.model, largest);
  }

  // Weights of outputs [out, out + outputs) and of two tiles of inputs as B panels.
  void pack(int64_t model, int64_t pair, int64_t out, int64_t outputs, Bf16* to, Ranges::Largest& largest) const {
    to += out / kTileDepth * terms * kTileSize;
    for (int n = 0; n < kWeights * 2; ++n, to += weight_panel()) {
      const int64_t i = pair * kTilePair + n % 2 * kTile;
      const float* w = (n < 2 ? in_.weight_re : in_.weight_im) + (model * in_.out + out) * in_.in + i;
      const int count = int(max<int64_t>(0, min<int64_t>(kTile, in_.in - i)));
      for (int64_t o = 0; o < round_up(outputs, kTileDepth); o += 2) {
        Reg row[2] = {};
        for (int h = 0; h < 2 && o + h < outputs && count > 0; ++h) {
          row[h] = S::load_first(w + (o + h) * in_.in, count);
          largest.see(row[h]);
        }
        tiles::split_pair<terms>(row[0], row[1], to + o / kTileDepth * terms * kTileSize + o % kTileDepth * kTile);
      }
    }
  }

  // The chunk's part of the weight sums of the block's outputs and of the inputs of pairs [begin, end).
  void sum(const GroupTask<float>& task, const Panels& c, int64_t begin, int64_t end) const {
    const tiles::Engine engine;
    SideWork side;
    Fetcher fetcher;
    Sums<complex> sums(f_);
    Transposed<terms> transposed(in_, ranges_);
    Fetcher transposed_fetcher;
    const int64_t size = InputPanels::size(c.rows);
    Scratch<Bf16> own_transposed(c.transposed == nullptr ? 2 * size : 0);
    InputPanels own_places[2] = {{own_transposed, 0, false}, {own_transposed + size, 0, false}};
    const auto inputs_of = [&](int64_t pair) -> InputPanels& {
      return c.transposed == nullptr ? own_places[(pair - begin) % 2] : c.transposed[pair];
    };
    const bool make = c.transposed == nullptr || c.out == 0;
    alignas(64) float own[2][2 * kBlockSize];
    if (make) {
      transposed.begin(task, c, begin * kTilePair, inputs_of(begin));
      side.add(transposed, transposed.slices());
      side.finish();
    }
    const int64_t steps = ceil_div(c.outputs, kUnitOutputs);
    for (int64_t pair = begin; pair < end; ++pair) {
      const InputPanels& now = inputs_of(pair);
      const bool more = pair + 1 < end;
      if (more && make) transposed.begin(task, c, (pair + 1) * kTilePair, inputs_of(pair + 1));
      if (more && !make) transposed_fetcher.begin(inputs_of(pair + 1).begin, size);
      for (int64_t unit = 0; unit < steps; ++unit) {
        if (more && make) side.add_share(transposed, transposed.slices(), unit, steps);
        if (more && !make) side.add_share(transposed_fetcher, transposed_fetcher.slices(), unit, steps);
        if (c.kept != nullptr && !c.first) {
          fetcher.begin(kept(c, pair, unit), 2 * kBlockSize);
          side.add(fetcher, fetcher.slices());
        }
        const auto blocks = multiply(engine, now, c, pair, unit, own[(pair * steps + unit) % 2], side);
        side.finish();
        sums.begin(task, c, c.out + unit * kUnitOutputs, pair * kTilePair, blocks);
        side.add(sums, sums.slices());
      }
    }
    side.finish();
  }

  float* kept(const Panels& c, int64_t pair, int64_t unit) const {
    return c.kept == nullptr ? nullptr : c.kept + (pair * units() + c.out / kUnitOutputs + unit) * 2 * kBlockSize;
  }

  // The products of a pair of tiles of inputs with a unit of outputs.
  typename Sums<complex>::Blocks multiply(const tiles::Engine& engine, const InputPanels& now, const Panels& c,
                                          int64_t pair, int64_t unit, float* own, SideWork& side) const {
    float* const kept = this->kept(c, pair, unit);
    float* const reals = kept != nullptr && c.first ? kept : own;
    float* const masked = reals + kBlockSize;
    constexpr int kReal = tiles::Engine::steps<terms, terms>, kMask = tiles::Engine::steps<1, terms>;
    side.spread_over(c.row_depth() * (kReal + (now.negative ? kMask : 0)));
    const int64_t tile = unit * (kUnitOutputs / kTile);
    engine.begin(false, reals);
    engine.add<terms, terms>({now.log_panel(0), now.log_panel(1)},
                             {c.of_outputs(0, tile), c.of_outputs(complex ? 1 : 0, complex ? tile : tile + 1)},
                             c.row_depth(), reals, side);
    engine.end(reals);
    if (now.negative) {
      engine.begin(false, masked);
      engine.add<1, terms>({now.mask_panel(0), now.mask_panel(1)},
                           {c.of_outputs(complex ? 0 : 1, tile), c.of_outputs(1, complex ? tile : tile + 1)},
                           c.row_depth(), masked, side);
      engine.end(masked);
    } else if (reals == kept) {
      std::memset(masked, 0, size_t(kBlockSize) * sizeof(float));
    }
    if (reals == kept) return {kept, kept + kBlockSize, nullptr, nullptr};
    const float* const products = now.negative ? masked : nullptr;
    if (kept == nullptr) return {nullptr, nullptr, reals, products};
    return {kept, kept + kBlockSize, reals, products};
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
