// Backward of the Neural Power Unit family by tile products; the algebra stands in npu_backward.cpp.
//
// A chunk of rows meets a block of outs at a time. Its dP and dQ become A panels twice: row by row, where k runs over
// outs, for dL = dP Wr + dQ Wi; and turned, where k runs over rows, for the weight sums. B are the weights packed for
// 32 inputs, and L and m of 32 inputs. The 2 x 2 tiles of a product:
//
//   dL         two tiles of rows, two of inputs
//   sums, NPU       (dP', dQ') of one tile of outs with L gives (SP, SQ), with m (MP, MQ), of two tiles of inputs
//   sums, RealNPU   dP' of two tiles of outs with L gives SP, dQ' with m MQ, of two tiles of inputs
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
// Rows of a chunk and outs of a block: a panel of dP and dQ is 1.5 MiB then, in three terms.
constexpr int64_t kMostRows = 512;
constexpr int64_t kOutBlock = 256;
constexpr int64_t kMostSpread = int64_t(1) << 20;  // floats of dL that are kept from block to block

template <int terms, bool complex>
class Group {
  static constexpr int kUnitOuts = complex ? kTile : 2 * kTile;
  static constexpr int kWeights = complex ? 2 : 1;

 public:
  static constexpr bool kShares = true;
  // Where the rows are one chunk.
  static bool writes_gradients(const NpuBackward<float>& f) {
    return f.inputs.rows > 0 && f.inputs.rows <= most_rows(f.inputs);
  }

  Group(const NpuBackward<float>& f, const Ranges& ranges) : f_(f), in_(f.inputs), ranges_(ranges) {}

  void run(const GroupTask<float>& task, const Parallel& inner) const {
    if (task.sums != nullptr) std::memset(task.sums, 0, size_t(kParts<complex> * in_.out * in_.in) * sizeof(float));
    std::memset(task.phase_sums, 0, size_t(in_.in) * sizeof(float));
    std::memset(task.gate_sums, 0, size_t(in_.in) * sizeof(float));
    const int64_t rows = task.end - task.begin, pairs = ceil_div(in_.in, kPair);
    const int64_t chunks = most<int64_t>(1, ceil_div(rows, most_rows(in_)));
    const int64_t chunk_rows = round_up(ceil_div(rows, chunks), kPair);
    const int64_t block_outs = least(kOutBlock, round_up(in_.out, kPair));
    Scratch<Bf16> grads(2 * chunk_rows * block_outs * terms);
    Scratch<float> spread_sums(in_.out > kOutBlock && task.want_spread ? chunk_rows * pairs * kPair : 0);
    for (int64_t row = task.begin; row < task.end; row += chunk_rows) {
      Chunk c;
      c.row = row;
      c.rows = least(chunk_rows, task.end - row);
      c.grads = grads;
      c.spread_sums = spread_sums;
      for (c.out = 0; c.out < in_.out; c.out += kOutBlock) {
        c.outs = least(kOutBlock, in_.out - c.out);
        if (task.want_spread) {
          inner.over(ceil_div(c.rows, kPair), [&](int64_t begin, int64_t end) {
            gradient_rows(task, c, begin * kPair, least(end * kPair, round_up(c.rows, kPair)));
          });
          inner.over(pairs, [&](int64_t begin, int64_t end) { spread(task, c, begin, end); });
        }
        if (task.want_sums) {
          inner.over(round_up(c.outs, kUnitOuts) / kTile,
                     [&](int64_t begin, int64_t end) { gradient_columns(task, c, begin, end); });
          inner.over(pairs, [&](int64_t begin, int64_t end) { sum(task, c, begin, end); });
        }
      }
    }
  }

 private:
  struct Chunk {
    int64_t row, rows;   // the first of the model's rows, and how many
    int64_t out, outs;   // of the block
    Bf16* grads;         // panels of dP, then of dQ
    float* spread_sums;  // dL's blocks: [two tiles of inputs][two tiles of rows]

    int64_t out_depth() const { return ceil_div(outs, kTileDepth); }  // k tiles of dL
    int64_t row_depth() const { return ceil_div(rows, kTileDepth); }  // k tiles of the sums
    int64_t row_pairs() const { return ceil_div(rows, kPair); }
    // dP (0) and dQ (1) of a tile of rows, and of a tile of outs.
    Bf16* of_rows(int part, int64_t tile) const {
      return grads + (part * 2 * row_pairs() + tile) * out_depth() * terms * kTileSize;
    }
    Bf16* of_outs(int part, int64_t tile) const {
      return grads + (part * (round_up(outs, kUnitOuts) / kTile) + tile) * row_depth() * terms * kTileSize;
    }
  };

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

  // Rows [begin, end) of the chunk as A panels.
  void gradient_rows(const GroupTask<float>& task, const Chunk& c, int64_t begin, int64_t end) const {
    Ranges::Largest largest;
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t k = 0; k < c.out_depth(); ++k) {
        Reg dp[2], dq[2];
        for (int v = 0; v < 2; ++v) {
          gradients(task, c, b, k * kTileDepth + v * kTile, &dp[v], &dq[v]);
          largest.see(dp[v]);
          if constexpr (complex) largest.see(dq[v]);
        }
        const int64_t at = k * terms * kTileSize + b % kTile * kTileDepth;
        tiles::split_row<terms>(dp[0], dp[1], c.of_rows(0, b / kTile) + at);
        if constexpr (complex) tiles::split_row<terms>(dq[0], dq[1], c.of_rows(1, b / kTile) + at);
      }
    }
    ranges_.gradient(task.model, largest);
  }

  // Tiles [begin, end) of the block's outs, turned, as A panels.
  void gradient_columns(const GroupTask<float>& task, const Chunk& c, int64_t begin, int64_t end) const {
    Ranges::Largest largest;
    for (int64_t tile = begin; tile < end; ++tile) {
      for (int64_t k = 0; k < c.row_depth(); ++k) {
        Reg dp[kTileDepth], dq[kTileDepth];
        for (int n = 0; n < kTileDepth; ++n) {
          gradients(task, c, k * kTileDepth + n, tile * kTile, &dp[n], &dq[n]);
          largest.see(dp[n]);
          largest.see(dq[n]);
        }
        for (Reg* part : {dp, dq})
          for (int half = 0; half < kTileDepth; half += kTile) S::transpose(part + half);
        Bf16 *p = c.of_outs(0, tile) + k * terms * kTileSize, *q = c.of_outs(1, tile) + k * terms * kTileSize;
        for (int n = 0; n < kTile; ++n) {
          tiles::split_row<terms>(dp[n], dp[kTile + n], p + n * kTileDepth);
          tiles::split_row<terms>(dq[n], dq[kTile + n], q + n * kTileDepth);
        }
      }
    }
    ranges_.gradient(task.model, largest);
  }

  // The block's part of dL of the inputs of pairs [begin, end), finished behind the last block.
  void spread(const GroupTask<float>& task, const Chunk& c, int64_t begin, int64_t end) const {
    const tiles::Engine engine;
    Ranges::Largest largest;
    const int64_t depth = c.out_depth(), panel = depth * terms * kTileSize;
    Scratch<Bf16> weights(kWeights * 2 * panel);  // [re, im][tile of inputs]
    alignas(64) float block[kBlockSize];
    for (int64_t pair = begin; pair < end; ++pair) {
      for (int n = 0; n < kWeights * 2; ++n) {
        const float* w = (n < 2 ? in_.weight_re : in_.weight_im) + (task.model * in_.out + c.out) * in_.in;
        pack(w, c.outs, pair * kPair + n % 2 * kTile, weights + n * panel, largest);
      }
      const bool first = c.out == 0, last = c.out + c.outs == in_.out;
      for (int64_t rows = 0; rows < c.row_pairs(); ++rows) {
        float* sums = first && last ? block : c.spread_sums + (pair * c.row_pairs() + rows) * kBlockSize;
        for (int part = 0; part < kWeights; ++part) {
          const Bf16* const a[2] = {c.of_rows(part, 2 * rows), c.of_rows(part, 2 * rows + 1)};
          const Bf16* const b[2] = {weights + 2 * part * panel, weights + (2 * part + 1) * panel};
          engine.multiply<terms, terms>(a, b, depth, part > 0 || !first, sums);
        }
        if (last) finish(task, c, rows * kPair, pair * kPair, sums);
      }
    }
    ranges_.operand(task.model, largest);
  }

  // Weights of `outs` outs and of up to 16 inputs from i on as a B panel.
  void pack(const float* w, int64_t outs, int64_t i, Bf16* to, Ranges::Largest& largest) const {
    const int count = int(most<int64_t>(0, least<int64_t>(kTile, in_.in - i)));
    for (int64_t o = 0; o < round_up(outs, kTileDepth); o += 2) {
      Reg row[2] = {};
      for (int n = 0; n < 2 && o + n < outs && count > 0; ++n) {
        row[n] = S::load_first(w + (o + n) * in_.in + i, count);
        largest.see(row[n]);
      }
      tiles::split_pair<terms>(row[0], row[1], to + o / kTileDepth * terms * kTileSize + o % kTileDepth * kTile);
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
      Reg gate_sum = S::zero();
      for (int64_t n = 0; n < rows; ++n) {
        const Reg dl = S::load(sums + (n / kTile * 2 * kTile + v * kTile + n % kTile) * kTile);
        const Reg x = S::load_first(in_.x + (row + n) * in_.in + i, count);
        const Reg dx = spread_to_x<float>(dl, x, g, one, eps, &gate_sum);
        if (f_.grad_x == nullptr) continue;
        S::store_first(f_.grad_x + (task.model * in_.rows + c.row + b + n) * in_.in + i, dx, count);
      }
      S::store_first(task.gate_sums + i, S::load_first(task.gate_sums + i, count) + gate_sum, count);
    }
  }

  // The chunk's part of the weight sums of the block's outs and of the inputs of pairs [begin, end).
  void sum(const GroupTask<float>& task, const Chunk& c, int64_t begin, int64_t end) const {
    const tiles::Engine engine;
    Ranges::Largest largest;
    const int64_t depth = c.row_depth(), panel = depth * terms * kTileSize, mask_panel = depth * kTileSize;
    Scratch<Bf16> log_r(2 * panel), mask(2 * mask_panel);
    alignas(64) float reals[kBlockSize], masked[kBlockSize];
    const Bf16* const logs[2] = {log_r, log_r + panel};
    const Bf16* const masks[2] = {mask, mask + mask_panel};
    for (int64_t pair = begin; pair < end; ++pair) {
      bool negative = false;
      for (int v = 0; v < 2; ++v)
        negative |= turn(task, c, pair * kPair + v * kTile, log_r + v * panel, mask + v * mask_panel, largest);
      for (int64_t tile = 0; tile < ceil_div(c.outs, kTile); tile += kUnitOuts / kTile) {
        const Bf16* const p[2] = {c.of_outs(0, tile), c.of_outs(complex ? 1 : 0, complex ? tile : tile + 1)};
        engine.multiply<terms, terms>(p, logs, depth, false, reals);
        const Bf16* const q[2] = {c.of_outs(complex ? 0 : 1, tile), c.of_outs(1, complex ? tile : tile + 1)};
        if (negative) engine.multiply<terms, 1>(q, masks, depth, false, masked);
        else std::memset(masked, 0, sizeof masked);
        add(task, c, tile * kTile, pair * kPair, reals, masked);
      }
    }
    ranges_.operand(task.model, largest);
  }

  // L and m of all rows and of up to 16 inputs from i on as B panels; whether any x is negative.
  bool turn(const GroupTask<float>& task, const Chunk& c, int64_t i, Bf16* log_r, Bf16* mask,
            Ranges::Largest& largest) const {
    const Reg one = S::set1(1), eps = S::set1(in_.eps);
    const int count = int(most<int64_t>(0, least<int64_t>(kTile, in_.in - i)));
    const Reg g = S::load_first(task.gate + i, count);  // zero behind I: r = 1, L = 0
    const float* x = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + c.row) * in_.in + i;
    bool negative = false;
    for (int64_t b = 0; b < round_up(c.rows, kTileDepth); b += 2) {
      Reg l[2] = {};
      S::Mask m[2] = {};
      for (int n = 0; n < 2 && b + n < c.rows; ++n) {
        const Reg value = S::load_first(x + (b + n) * in_.in, count);
        l[n] = VectorMath<float>::log(S::fma(g, S::abs(value) + eps, one - g));
        negative |= S::store_negative(&m[n], value);
        largest.see(l[n]);
      }
      const int64_t k = b / kTileDepth, at = b % kTileDepth * kTile;
      tiles::split_pair<terms>(l[0], l[1], log_r + k * terms * kTileSize + at);
      tiles::mask_pair(m[0], m[1], mask + k * kTileSize + at);
    }
    return negative;
  }

  // Adds the blocks of a unit of outs, from o on in this block, and of two tiles of inputs to the weight sums, or turns
  // them into gradients.
  void add(const GroupTask<float>& task, const Chunk& c, int64_t o, int64_t i0, const float* reals,
           const float* masked) const {
    const int64_t size = in_.out * in_.in;
    for (int64_t n = 0; n < least<int64_t>(kUnitOuts, c.outs - o); ++n) {
      for (int v = 0; v < 2; ++v) {
        const int64_t i = i0 + v * kTile;
        const int count = int(least<int64_t>(kTile, in_.in - i));
        if (count <= 0) break;
        const int64_t at = (c.out + o + n) * in_.in + i;
        const int64_t from = (n / kTile * 2 * kTile + v * kTile + n % kTile) * kTile;
        constexpr int64_t kSecond = 2 * kTile * kTile;  // the second row of tiles
        Reg sum[4];
        sum[kSP] = S::load(reals + from);
        sum[kMQ] = S::load(masked + from + (complex ? kSecond : 0));
        if constexpr (complex) {
          sum[kSQ] = S::load(reals + from + kSecond);
          sum[kMP] = S::load(masked + from);
        }
        if (task.sums == nullptr) {
          weight_gradients<float, complex>(f_, task.model * size + at, count, S::load_first(task.gate + i, count), sum,
                                           task.phase_sums + i);
          continue;
        }
        for (int part = 0; part < kParts<complex>; ++part) {
          float* to = task.sums + part * size + at;
          S::store_first(to, S::load_first(to, count) + sum[part], count);
        }
      }
    }
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
