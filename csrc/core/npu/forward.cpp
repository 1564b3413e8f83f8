// Forward of the Neural Power Unit family, one pass over the data (equations: Heim, Pevny, Smidl 2020, definition of
// the NPU).
//
//   r = ghat (|x| + eps) + (1 - ghat)        ghat = clamp(gate, 0, 1); ones without a gate (NaiveNPU)
//   L = log r,   m = [x < 0]
//   P = sum_i L wr - pi m ghat wi            Q = sum_i L wi + pi m ghat wr       (wi = 0: RealNPU)
//   y = exp(P) cos(Q),  s = exp(P) sin(Q)
//
// A tile of rows is transposed into a panel (L and the masks m, [I][registers of rows]); register tiles of P and Q run
// over I with broadcast weights; exp and sincos finish them before they leave the first-level cache. No [B, I] array is
// written, none of size [B, O] but the results. A tile without a negative input leaves out its mask products.
#include "npu/forward_few_rows.h"
#include "npu/forward_outputs.h"
#include "npu/forward_tiny.h"
#include "npu/step.h"

namespace npu {
namespace NPU_ISA {
namespace {

// Registers of a tile of P and of Q: rows x outputs, sized to the register file. A RealNPU's Q has mask products alone;
// in 16 registers they take turns with P.
constexpr int kTileRows = 3;
#if defined(__AVX512F__)
constexpr bool kAtOnce = true;
template <bool complex>
constexpr int kTileOutputs = 4;
#else
constexpr bool kAtOnce = false;
template <bool complex>
constexpr int kTileOutputs = complex ? 2 : 4;
#endif

// Inputs of a block: a multiple of every Phase<T>::inputs.
constexpr int64_t kInBlock = 384;

// The products with the sign mask m, where the instruction set has a permute by lane: the bits of `inputs` neighbouring
// masks select one of all partial sums of these inputs' phases, so that one lookup and one addition do what `inputs`
// multiply-adds would. Elsewhere an input's phase is added under its mask.
template <typename T>
struct Phase {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr bool lookup = S::group_size > 0;
  static constexpr int inputs = lookup ? S::group_size : 1;                     // of a group
  static constexpr int entries = lookup ? S::width : 1;                         // of a group's table
  using Slot = std::conditional_t<lookup, typename S::Bits, typename S::Mask>;  // a group's masks of a register of rows

  static int64_t groups(int64_t in) { return ceil_div(in, inputs); }

  static NPU_INLINE Reg add(Reg acc, const Slot& slot, const T* table) {
    if constexpr (lookup) return acc + S::lookup(S::load(table), slot);
    else return S::add_masked(acc, slot, S::set1(*table));
  }

  // The table of a group's phases, and of their S::pair_sums.
  static NPU_INLINE void pack(const T* phases, const T* pairs, int count, T* table) {
    if constexpr (S::sums_pairs) S::store(table, S::partial_sums_of_pairs(pairs, phases));
    else if constexpr (lookup) S::store(table, S::partial_sums(phases, 1, count));
    else *table = *phases;
  }

  // Writes the slots of a register of rows, which are `step` apart; the inputs come in ascending order.
  class Signs {
   public:
    Signs(Slot* first, int64_t step) : next_(first), step_(step) {}
    NPU_INLINE void add(Reg x) {
      if constexpr (lookup) {
        group_ = S::mark_negative(group_, x, in_group_);
        if (++in_group_ == inputs) end_group();
      } else {
        negative_ |= S::store_negative(next_, x);
        next_ += step_;
      }
    }
    // After the last input: whether any was negative.
    NPU_INLINE bool end() {
      if constexpr (lookup) {
        if (in_group_ > 0) end_group();
        return S::any_mark(all_);
      }
      return negative_;
    }

   private:
    NPU_INLINE void end_group() {
      if constexpr (lookup) {
        *next_ = group_;
        next_ += step_;
        all_ |= group_;
        group_ = typename S::Bits{};
        in_group_ = 0;
      }
    }
    Slot* next_;
    const int64_t step_;
    typename S::Bits group_ = {}, all_ = {};
    int in_group_ = 0;
    bool negative_ = false;
  };
};

// A block of kTileOutputs<complex> outputs and up to kInBlock inputs of one model, in the order in which the tiles read
// it:
//   reals   [inputs][outputs][wr, wi]
//   phases  [groups of inputs][outputs][tables of pi ghat wr, -pi ghat wi]
template <typename T, bool complex>
struct PackedWeights {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int parts = complex ? 2 : 1;
  static constexpr int group = Phase<T>::inputs;
  static constexpr int entries = Phase<T>::entries;

  Scratch<T> reals, phases;

  explicit PackedWeights(int64_t ins)
      : reals(ins * kTileOutputs<complex> * parts),
        phases(Phase<T>::groups(ins) * kTileOutputs<complex> * parts * entries) {}

  // Inputs [i0, i0 + ins) of outputs [o, o + outputs); phases only where an input is negative.
  void pack(const NpuInputs<T>& in, int64_t model, const T* gate, int64_t i0, int64_t ins, int64_t o, int outputs,
            bool negative) {
    const int64_t first = (model * in.out + o) * in.in + i0;
    const int64_t whole = outputs == kTileOutputs<complex> ? pack_tile(in, first, ins) : 0;
    for (int n = 0; n < outputs; ++n) {
      const T* re = in.weight_re + first + n * in.in;
      const T* im = complex ? in.weight_im + first + n * in.in : nullptr;
      T* real = reals + (whole * outputs + n) * parts;
      for (int64_t i = whole; i < ins; ++i, real += outputs * parts) {
        real[0] = re[i];
        if constexpr (complex) real[1] = im[i];
      }
      if (negative) pack_phases(re, im, gate + i0, ins, phases + n * parts * entries, outputs * parts * entries);
    }
  }

 private:
  // The reals of a whole tile of outputs, whose weights begin at `first`, for as many inputs as fill whole registers;
  // returns how many these are.
  int64_t pack_tile(const NpuInputs<T>& in, int64_t first, int64_t ins) {
    constexpr int kRow = kTileOutputs<complex> * parts;
    int64_t i = 0;
    if constexpr (kRow <= W) {
      for (; i + W <= ins; i += W) {
        Reg rows[kRow];
        for (int n = 0; n < kRow; ++n)
          rows[n] = S::load((n % parts == 0 ? in.weight_re : in.weight_im) + first + n / parts * in.in + i);
        S::template transpose<kRow>(rows);
        for (int n = 0; n < kRow; ++n)
          for (int block = 0; block < W; block += kRow)
            std::memcpy(reals + (i + block + n) * kRow, reinterpret_cast<const T*>(&rows[n]) + block, kRow * sizeof(T));
      }
    }
    return i;
  }

  // The tables of an out, `step` apart.
  static void pack_phases(const T* re, const T* im, const T* gate, int64_t ins, T* table, int64_t step) {
    alignas(64) T terms[parts][kInBlock], pairs[parts][S::sums_pairs ? kInBlock : 1];
    for (int64_t i = 0; i < ins; i += W) {
      const int count = int(min<int64_t>(W, ins - i));
      const Reg angle = S::set1(T(kPi)) * S::load_first(gate + i, count);
      for (int part = 0; part < parts; ++part) {
        const Reg term = part ? -angle * S::load_first(im + i, count) : angle * S::load_first(re + i, count);
        S::store(terms[part] + i, term);
        if constexpr (S::sums_pairs) S::store(pairs[part] + i, S::pair_sums(term));
      }
    }
    const auto pack = [&](int64_t i, int count) __attribute__((always_inline)) {
      for (int part = 0; part < parts; ++part)
        Phase<T>::pack(terms[part] + i, pairs[part] + (S::sums_pairs ? i : 0), count, table + part * entries);
      table += step;
    };
    int64_t i = 0;
    for (; i + group <= ins; i += group) pack(i, group);
    if (i < ins) pack(i, int(ins - i));
  }
};

// p[r][n] = sum_i L[i][r] wr[n][i] - pi m ghat wi,  q likewise;  R registers of rows, N outputs. `resume` adds to what
// p_out and q_out hold. A function of its own: inlined, GCC keeps sums of some tiles on the stack.
template <typename T, bool complex, bool negative, int R, int N>
NPU_NOINLINE void product_tile(const T* log_r, const typename Phase<T>::Slot* slots, int64_t in, const T* reals,
                               const T* phases, bool resume, T* p_out, T* q_out) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  constexpr int parts = PackedWeights<T, complex>::parts;
  constexpr int group = Phase<T>::inputs;
  constexpr int entries = Phase<T>::entries;
  Reg p[R][N], q[R][N];
  const auto multiply = [&]() __attribute__((always_inline)) {
    Reg l[R];
    for (int r = 0; r < R; ++r) l[r] = S::load(log_r + r * W);
    for (int n = 0; n < N; ++n) {
      const Reg re = S::set1(reals[n * parts]);
      for (int r = 0; r < R; ++r) S::accumulate(p[r][n], l[r], re);
      if constexpr (complex) {
        const Reg im = S::set1(reals[n * parts + 1]);
        for (int r = 0; r < R; ++r) S::accumulate(q[r][n], l[r], im);
      }
    }
    log_r += R * W;
    reals += N * parts;
  };
  const auto turn = [&]() __attribute__((always_inline)) {
    for (int n = 0; n < N; ++n, phases += parts * entries) {
      for (int r = 0; r < R; ++r) q[r][n] = Phase<T>::add(q[r][n], slots[r], phases);
      if constexpr (complex)
        for (int r = 0; r < R; ++r) p[r][n] = Phase<T>::add(p[r][n], slots[r], phases + entries);
    }
    slots += R;
  };
  const auto clear = [](Reg(&sums)[R][N]) __attribute__((always_inline)) {
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) sums[r][n] = S::zero();
  };
  const auto store = [&](T* out, const Reg(&sums)[R][N]) __attribute__((always_inline)) {
    for (int n = 0; n < N; ++n) {
      for (int r = 0; r < R; ++r) {
        T* at = out + (n * R + r) * W;
        S::store(at, resume ? S::load(at) + sums[r][n] : sums[r][n]);
      }
    }
  };
  constexpr bool together = kAtOnce || complex;
  int64_t i = 0;
  do {
    clear(p);
    if constexpr (together) clear(q);
    const int64_t end = min(i + kRun, in), groups = Phase<T>::groups(end - i);
    for (; i + group <= end; i += group) {
      for (int j = 0; j < group; ++j) multiply();
      if constexpr (negative && together) turn();
    }
    if (i < end) {
      for (; i < end; ++i) multiply();
      if constexpr (negative && together) turn();
    }
    store(p_out, p);
    if constexpr (!together) {
      clear(q);
      for (int64_t g = 0; negative && g < groups; ++g) turn();
    }
    store(q_out, q);
    resume = true;
  } while (i < in);
}

// Fetches a line of up to a register of rows, `step` elements apart, which are soon written.
template <typename T>
NPU_INLINE void fetch_for_writing(const T* first, int64_t rows, int64_t step) {
  for (int64_t r = 0; r < min<int64_t>(rows, Simd<T>::width); ++r) __builtin_prefetch(first + r * step, 1);
}
// Whether so many rows are worth it: if they are few, they are in a cache already.
template <typename T>
bool fetches(int64_t rows, int64_t features) {
  return rows * features * int64_t(sizeof(T)) >= int64_t(1) << 20;
}

// L as [I][registers] and m as [groups][registers] of a tile; returns whether any x is negative. `ahead` rows from x
// on, of any tile, are worth fetching.
template <typename T>
bool log_panel(const NpuInputs<T>& in, const T* x, int64_t rows, int registers, int64_t ahead, const T* gate, T* log_r,
               typename Phase<T>::Slot* slots) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  const Reg eps = S::set1(in.eps);
  bool negative = false;
  for (int r = 0; r < registers; ++r) {
    const int valid = int(max<int64_t>(0, min<int64_t>(W, rows - r * W)));
    typename Phase<T>::Signs signs(slots + r, registers);
    for (int64_t i0 = 0; i0 < in.in; i0 += W) {
      const int count = int(min<int64_t>(W, in.in - i0));
      Reg column[W];
      fetch_part<T>(x + (r + 1) * W * in.in, ahead - (r + 1) * W, in.in, i0, count);
      load_columns_inline<T>(x + r * W * in.in + i0, in.in, valid, count, column);
      T rest[W];  // 1 - ghat
      S::store(rest, S::set1(T(1)) - S::load_first(gate + i0, count));
      for (int c = 0; c < count; ++c) {
        const Gate<T> g(S::set1(gate[i0 + c]), S::set1(rest[c]), eps);
        S::store(log_r + ((i0 + c) * registers + r) * W, g.log(column[c]));
        signs.add(column[c]);
      }
    }
    negative |= signs.end();
  }
  return negative;
}

// The rows of a tile: L, m, and P and Q of the outputs that are kept.
template <typename T>
struct Panel {
  int64_t row, rows;  // the first of all models' rows, and how many
  int registers;
  bool negative;
  T *log_r, *p, *q;
  typename Phase<T>::Slot* slots;
};

// y and s of `outputs` outputs from o on; `first` is the first of those kept. `ahead` rows from the tile's first on are
// worth fetching.
template <typename T>
void finish(const NpuForward<T>& f, const Panel<T>& t, int64_t first, int64_t o, int outputs, int64_t ahead) {
  using S = Simd<T>;
  constexpr int W = S::width;
  T* const to[2] = {f.y, f.s};
  for (int r = 0; r < t.registers; ++r) {
    const int64_t next = (t.row + (r + 1) * W) * f.inputs.out + o;
    for (T* const result : to)
      if (result != nullptr) fetch_for_writing<T>(result + next, ahead - (r + 1) * W, f.inputs.out);
    typename S::Reg column[2][W];  // y and s
    for (int n = 0; n < outputs; ++n) {
      const int64_t from = ((o - first + n) * t.registers + r) * W;
      finish_outputs<T>(S::load(t.p + from), S::load(t.q + from), &column[0][n], &column[1][n]);
    }
    const int valid = int(min<int64_t>(W, t.rows - r * W));
    const int64_t at = (t.row + r * W) * f.inputs.out + o;
#pragma GCC unroll 1  // one transposition in the code, not two
    for (int n = 0; n < 2; ++n)
      if (to[n] != nullptr) store_columns_inline<T>(to[n] + at, f.inputs.out, valid, outputs, column[n]);
  }
}

// Outputs [first, end) of the rows of some tiles of one model. A block of weights is packed once and stays in the cache
// while all tiles pass over it. Many inputs are taken in blocks, all outputs after each other, so that the tiles'
// panels stay in the second-level cache too; P and Q of all outputs are kept meanwhile.
template <typename T, bool complex>
class Chunk {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Slot = typename Phase<T>::Slot;
  using Tile = Panel<T>;
  static constexpr int W = S::width;

 public:
  static constexpr int64_t kTileSize = kTileRows * W;  // rows
  static constexpr int kMaxTiles = 32;

  // As many tiles as keep their panels of a block at half a megabyte.
  static int64_t tiles_for(int64_t in) {
    const int64_t bytes = min(in, kInBlock) * kTileSize * int64_t(sizeof(T));
    return max<int64_t>(1, min<int64_t>(kMaxTiles, (int64_t(1) << 19) / max<int64_t>(bytes, 1)));
  }

  Chunk(const NpuForward<T>& f, int64_t tiles, int64_t outputs)
      : f_(f),
        in_(f.inputs),
        fetches_x_(fetches<T>(in_.shared_x ? in_.rows : in_.models * in_.rows, in_.in)),
        fetches_y_(fetches<T>(in_.models * in_.rows, in_.out)),
        weights_(min(in_.in, kInBlock)),
        log_r_(tiles * in_.in * kTileSize),
        slots_(tiles * Phase<T>::groups(in_.in) * kTileRows),
        outputs_at_once_(in_.in <= kInBlock ? W : ceil_div(outputs, W) * W),
        p_(tiles * outputs_at_once_ * kTileSize),
        q_(tiles * outputs_at_once_ * kTileSize) {}

  void run(int64_t model, int64_t first_row, int64_t end_row, int64_t first_out, int64_t end_out, const T* gate) {
    Tile tiles[kMaxTiles];
    int count = 0;
    bool negative = false;
    for (int64_t row = first_row; row < end_row; row += kTileSize, ++count) {
      Tile& t = tiles[count];
      t.row = model * in_.rows + row;
      t.rows = min(kTileSize, end_row - row);
      t.registers = int(ceil_div(t.rows, W));
      t.log_r = log_r_ + count * in_.in * kTileSize;
      t.slots = slots_ + count * Phase<T>::groups(in_.in) * kTileRows;
      t.p = p_ + count * outputs_at_once_ * kTileSize;
      t.q = q_ + count * outputs_at_once_ * kTileSize;
      const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
      t.negative = log_panel<T>(in_, x, t.rows, t.registers, fetches_x_ ? in_.rows - row : 0, gate, t.log_r, t.slots);
      negative |= t.negative;
    }
    for (int64_t first = first_out; first < end_out; first += outputs_at_once_) {
      const int64_t end = min(first + outputs_at_once_, end_out);
      int64_t i0 = 0;
      do {
        const int64_t ins = min(kInBlock, in_.in - i0);
        for (int64_t o = first; o < end; o += kTileOutputs<complex>) {
          const int outputs = int(min<int64_t>(kTileOutputs<complex>, end - o));
          weights_.pack(in_, model, gate, i0, ins, o, outputs, negative);
          for (int t = 0; t < count; ++t) add_block(tiles[t], i0, ins, o - first, outputs);
        }
        i0 += kInBlock;
      } while (i0 < in_.in);
      for (int64_t o = first; o < end; o += W)
        for (int t = 0; t < count; ++t)
          finish(f_, tiles[t], first, o, int(min<int64_t>(W, end - o)),
                 fetches_y_ ? (model + 1) * in_.rows - tiles[t].row : 0);
    }
  }

 private:
  // Adds the products of the packed block of weights (its inputs begin at i0) to P and Q of `outputs` outputs,
  // beginning at the kept output number `at`.
  void add_block(const Tile& t, int64_t i0, int64_t ins, int64_t at, int outputs) {
    with_constant<1, kTileRows>(t.registers,
                                [&](auto r) { add_block_of<decltype(r)::value>(t, i0, ins, at, outputs); });
  }

  template <int R>
  void add_block_of(const Tile& t, int64_t i0, int64_t ins, int64_t at, int outputs) {
    const T *log_r = t.log_r + i0 * R * W, *reals = weights_.reals, *phases = weights_.phases;
    const Slot* slots = t.slots + i0 / Phase<T>::inputs * R;
    T *p = t.p + at * R * W, *q = t.q + at * R * W;
    with_constant<1, kTileOutputs<complex>>(outputs, [&](auto n) {
      constexpr int N = decltype(n)::value;
      if (t.negative) product_tile<T, complex, true, R, N>(log_r, slots, ins, reals, phases, i0 > 0, p, q);
      else product_tile<T, complex, false, R, N>(log_r, slots, ins, reals, phases, i0 > 0, p, q);
    });
  }

  const NpuForward<T>& f_;
  const NpuInputs<T>& in_;
  const bool fetches_x_, fetches_y_;
  PackedWeights<T, complex> weights_;
  Scratch<T> log_r_;
  Scratch<Slot> slots_;
  const int64_t outputs_at_once_;
  Scratch<T> p_, q_;
};

// How the outputs are cut into tasks: chunks of rows, and of each the ranges of outputs. Outputs do not meet one
// another, so that the cuts may follow from the number of threads.
template <typename T, bool complex>
class Tasks {
  using Tiles = Chunk<T, complex>;

 public:
  Tasks(const NpuInputs<T>& in, int64_t threads)
      : rows_(in.rows), outputs_(in.out), tiles_(ceil_div(rows_, Tiles::kTileSize)) {
    if (in.models * in.rows * in.out == 0) return;
    chunks_ = max<int64_t>(1, ceil_div(tiles_, Tiles::tiles_for(in.in)));  // their panels fit in the cache
    ranges_ = 1;
    if (threads <= 1) return;
    // A chunk packs all weights anew, and a range makes all logarithms anew: chunks cost less from about eight rows for
    // each out on.
    const int64_t wanted = 2 * threads, more = ceil_div(wanted, in.models * chunks_);
    if (chunks_ * more > tiles_ || in.rows < 8 * in.out)
      ranges_ = max<int64_t>(1, min(in.out / Simd<T>::width, ceil_div(threads, in.models * chunks_)));
    chunks_ = min(tiles_, chunks_ * ceil_div(ranges_ > 1 ? threads : wanted, in.models * chunks_ * ranges_));
  }

  int64_t chunks() const { return chunks_; }
  int64_t ranges() const { return ranges_; }
  int64_t most_tiles() const { return ceil_div(tiles_, chunks_); }
  int64_t max_outputs() const { return min(outputs_, ceil_div(outputs_, ranges_) + kTileOutputs<complex>); }
  int64_t first_row(int64_t chunk) const { return min(tiles_ * chunk / chunks_ * Tiles::kTileSize, rows_); }
  int64_t first_out(int64_t range) const {
    return range == ranges_ ? outputs_ : outputs_ * range / ranges_ / kTileOutputs<complex> * kTileOutputs<complex>;
  }

 private:
  const int64_t rows_, outputs_, tiles_;
  int64_t chunks_ = 0, ranges_ = 0;
};

template <typename T, bool complex>
bool forward_panels(const NpuForward<T>& f, const Parallel& parallel) {
  const NpuInputs<T>& in = f.inputs;
  const Tasks<T, complex> tasks(in, parallel.threads);
  const int64_t chunks = tasks.chunks(), ranges = tasks.ranges();

  parallel.over(in.models * chunks * ranges, [&](int64_t begin, int64_t end) {
    Scratch<T> gate(in.in);
    Chunk<T, complex> chunk(f, tasks.most_tiles(), tasks.max_outputs());
    int64_t gate_model = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / (chunks * ranges), part = task / ranges % chunks, range = task % ranges;
      if (model != gate_model) load_gate<T>(in, model, gate);
      gate_model = model;
      chunk.run(model, tasks.first_row(part), tasks.first_row(part + 1), tasks.first_out(range),
                tasks.first_out(range + 1), gate);
    }
  });
  return true;
}

template <typename T, bool complex>
bool forward(NpuForwardForm form, const NpuForward<T>& f, const Parallel& parallel) {
  switch (form) {
    case NpuForwardForm::kTiny:
      return forward_tiny<T, complex>(f, parallel);
    case NpuForwardForm::kFewOutputs:
      return npu_forward_few_outputs<T>(f, parallel);
    case NpuForwardForm::kFewRows:
      return forward_few_rows<T, complex>(f, parallel);
    case NpuForwardForm::kPanels:
      return forward_panels<T, complex>(f, parallel);
    case NpuForwardForm::kOutputs:
      if constexpr (kOutputsAsLanes && complex) return outputs::forward<T>(f, parallel);
      return false;
  }
  return false;
}

}  // namespace

template <typename T>
bool npu_forward_in(NpuForwardForm form, const NpuForward<T>& f, const Parallel& parallel) {
  return f.inputs.weight_im != nullptr ? forward<T, true>(form, f, parallel) : forward<T, false>(form, f, parallel);
}

template <typename T>
void npu_forward(const NpuForward<T>& f, const Parallel& parallel) {
  if (!npu_forward_in(Limits<T>::forward(f.inputs), f, parallel)) npu_forward_in(NpuForwardForm::kPanels, f, parallel);
}

template <typename T>
bool npu_step(const NpuStep<T>& f) {
  return f.backward.inputs.weight_im != nullptr ? step<T, true>(f) : step<T, false>(f);
}

template bool npu_forward_in<float>(NpuForwardForm, const NpuForward<float>&, const Parallel&);
template bool npu_forward_in<double>(NpuForwardForm, const NpuForward<double>&, const Parallel&);
template bool npu_step<float>(const NpuStep<float>&);
template bool npu_step<double>(const NpuStep<double>&);
template void npu_forward<float>(const NpuForward<float>&, const Parallel&);
template void npu_forward<double>(const NpuForward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
