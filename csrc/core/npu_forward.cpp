// Forward of the Neural Power Unit family, one pass over the data (equations: Heim, Pevny, Smidl 2020, definition of
// the NPU).
//
//   r = ghat (|x| + eps) + (1 - ghat)        ghat = clamp(gate, 0, 1); ones without a gate (NaiveNPU)
//   L = log r,   m = [x < 0]
//   P = sum_i L wr - pi m ghat wi            Q = sum_i L wi + pi m ghat wr       (wi = 0: RealNPU)
//   y = exp(P) cos(Q),  s = exp(P) sin(Q)
//
// A tile of rows is turned into a panel (L and the masks m, [I][registers of rows]); register tiles of P and Q run
// over I with broadcast weights; exp and sincos finish them before they leave the first-level cache. No [B, I] array is
// written, none of size [B, O] but the results. A tile without a negative input leaves out its mask products.
#include "api.h"
#include "panel.h"
#include "vector_math.h"

namespace npu {
namespace NPU_ISA {
namespace {

// Registers of a tile of P and of Q: rows x outs, sized to the register file.
#if defined(__AVX512F__)
constexpr int kTileRows = 3;
constexpr int kTileOuts = 4;
#else
constexpr int kTileRows = 3;
constexpr int kTileOuts = 2;
#endif

constexpr double kPi = 3.14159265358979323846;

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

  static NPU_INLINE void pack(const T* phases, int count, T* table) {
    if constexpr (lookup) S::store(table, S::partial_sums(phases, count));
    else *table = *phases;
  }

  // Sets the bit (or the mask) of input i; inputs come in ascending order. Returns whether any lane is negative.
  static NPU_INLINE bool set(Slot* slots, int64_t i, int r, int registers, Reg x) {
    Slot& slot = slots[i / inputs * registers + r];
    if constexpr (lookup) {
      const typename S::Bits bit = (x < S::zero()) & S::set1_bits(typename S::Int(1) << (i % inputs));
      slot = i % inputs == 0 ? bit : slot | bit;
      return S::any(bit);
    } else {
      return S::store_negative(&slot, x);
    }
  }
};

// Weights of one model in the order the tiles read them, block after block of kTileOuts outs:
//   reals   [I][outs][wr, wi]
//   phases  [groups of inputs][outs][tables of pi ghat wr, -pi ghat wi]
template <typename T, bool complex>
struct PackedWeights {
  static constexpr int parts = complex ? 2 : 1;
  const T *reals, *phases;

  static int64_t reals_size(const NpuInputs<T>& in) { return ceil_div(in.out * in.in * parts, 16) * 16; }
  static int64_t phases_per_out(const NpuInputs<T>& in) { return Phase<T>::groups(in.in) * parts * Phase<T>::entries; }
  static int64_t size(const NpuInputs<T>& in) { return reals_size(in) + in.out * phases_per_out(in); }

  PackedWeights(const NpuInputs<T>& in, const T* packed) : reals(packed), phases(packed + reals_size(in)) {}

  static void pack(const NpuInputs<T>& in, int64_t model, const T* gate, int64_t out_begin, int64_t out_end,
                   T* packed) {
    constexpr int group = Phase<T>::inputs;
    const T* wr = in.weight_re + model * in.out * in.in;
    const T* wi = complex ? in.weight_im + model * in.out * in.in : nullptr;
    for (int64_t o0 = out_begin; o0 < out_end; o0 += kTileOuts) {
      const int outs = int(least<int64_t>(kTileOuts, in.out - o0));
      T* reals = packed + o0 * in.in * parts;
      T* phases = packed + reals_size(in) + o0 * phases_per_out(in);
      for (int n = 0; n < outs; ++n) {
        const T* re = wr + (o0 + n) * in.in;
        const T* im = complex ? wi + (o0 + n) * in.in : nullptr;
        for (int64_t i = 0; i < in.in; ++i) {
          reals[(i * outs + n) * parts] = re[i];
          if constexpr (complex) reals[(i * outs + n) * parts + 1] = im[i];
        }
        for (int64_t i0 = 0; i0 < in.in; i0 += group) {
          const int count = int(least<int64_t>(group, in.in - i0));
          T turn[group], shrink[group];
          for (int j = 0; j < count; ++j) {
            const T phase = T(kPi) * gate[i0 + j];
            turn[j] = phase * re[i0 + j];
            if constexpr (complex) shrink[j] = -phase * im[i0 + j];
          }
          T* table = phases + (i0 / group * outs + n) * parts * Phase<T>::entries;
          Phase<T>::pack(turn, count, table);
          if constexpr (complex) Phase<T>::pack(shrink, count, table + Phase<T>::entries);
        }
      }
    }
  }
};

// p[r][n] = sum_i L[i][r] wr[n][i] - pi m ghat wi,  q likewise;  R registers of rows, N outs. `resume` adds to what
// p_out and q_out hold.
template <typename T, bool complex, bool negative, int R, int N>
void product_tile(const T* log_r, const typename Phase<T>::Slot* slots, int64_t in, const T* reals, const T* phases,
                  bool resume, T* p_out, T* q_out) {
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
      for (int r = 0; r < R; ++r) p[r][n] = S::fma(l[r], re, p[r][n]);
      if constexpr (complex) {
        const Reg im = S::set1(reals[n * parts + 1]);
        for (int r = 0; r < R; ++r) q[r][n] = S::fma(l[r], im, q[r][n]);
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
  int64_t i = 0;
  do {
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) p[r][n] = q[r][n] = S::zero();
    const int64_t end = least(i + kRun, in);
    for (; i + group <= end; i += group) {
      for (int j = 0; j < group; ++j) multiply();
      if constexpr (negative) turn();
    }
    if (i < end) {
      for (; i < end; ++i) multiply();
      if constexpr (negative) turn();
    }
    for (int n = 0; n < N; ++n) {
      for (int r = 0; r < R; ++r) {
        T *p_at = p_out + (n * R + r) * W, *q_at = q_out + (n * R + r) * W;
        S::store(p_at, resume ? S::load(p_at) + p[r][n] : p[r][n]);
        S::store(q_at, resume ? S::load(q_at) + q[r][n] : q[r][n]);
      }
    }
    resume = true;
  } while (i < in);
}

template <typename T, bool complex, bool negative, int R>
void product_tile_of(int outs, const T* log_r, const typename Phase<T>::Slot* slots, int64_t in, const T* reals,
                     const T* phases, bool resume, T* p, T* q) {
  switch (outs) {
    case 1:
      return product_tile<T, complex, negative, R, 1>(log_r, slots, in, reals, phases, resume, p, q);
    case 2:
      return product_tile<T, complex, negative, R, 2>(log_r, slots, in, reals, phases, resume, p, q);
#if defined(__AVX512F__)
    case 3:
      return product_tile<T, complex, negative, R, 3>(log_r, slots, in, reals, phases, resume, p, q);
    case 4:
      return product_tile<T, complex, negative, R, 4>(log_r, slots, in, reals, phases, resume, p, q);
#endif
  }
}

// L as [I][R] and m as [groups][R] of R registers of rows; returns whether any x is negative.
template <typename T, int R>
bool log_panel(const NpuInputs<T>& in, const T* x, int64_t rows, const T* gate, T* log_r,
               typename Phase<T>::Slot* slots) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int W = S::width;
  const Reg eps = S::set1(in.eps);
  bool negative = false;
  for (int r = 0; r < R; ++r) {
    const int valid = int(most<int64_t>(0, least<int64_t>(W, rows - r * W)));
    for (int64_t i0 = 0; i0 < in.in; i0 += W) {
      const int count = int(least<int64_t>(W, in.in - i0));
      Reg column[W];
      load_columns<T>(x + r * W * in.in + i0, in.in, valid, count, column);
      for (int c = 0; c < count; ++c) {
        const Reg g = S::set1(gate[i0 + c]);
        const Reg size = S::fma(g, S::abs(column[c]) + eps, S::set1(T(1)) - g);
        S::store(log_r + ((i0 + c) * R + r) * W, VectorMath<T>::log(size));
        negative |= Phase<T>::set(slots, i0 + c, r, R, column[c]);
      }
    }
  }
  return negative;
}

// The rows of a few tiles of one model. Tiles pass over a block of weights in turn while it is in the second-level
// cache. Many inputs are taken in blocks, all outs after each other, so that the tiles' panels stay there too; P and Q
// of all outs are kept meanwhile.
template <typename T, bool complex>
class Chunk {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Slot = typename Phase<T>::Slot;
  using Weights = PackedWeights<T, complex>;
  static constexpr int W = S::width;
  static constexpr int64_t kInBlock = 384;  // a multiple of every Phase<T>::inputs

 public:
  static constexpr int64_t kTileSize = kTileRows * W;  // rows
  static constexpr int kMostTiles = 8;

  // As many tiles as keep their panels of a block at half a megabyte.
  static int64_t tiles_for(int64_t in) {
    const int64_t bytes = least(in, kInBlock) * kTileSize * int64_t(sizeof(T));
    return most<int64_t>(1, least<int64_t>(kMostTiles, (int64_t(1) << 19) / most<int64_t>(bytes, 1)));
  }

  Chunk(const NpuForward<T>& f, int64_t tiles)
      : f_(f),
        in_(f.inputs),
        log_r_(tiles * in_.in * kTileSize),
        slots_(tiles * Phase<T>::groups(in_.in) * kTileRows),
        outs_at_once_(in_.in <= kInBlock ? W : ceil_div(in_.out, W) * W),
        p_(tiles * outs_at_once_ * kTileSize),
        q_(tiles * outs_at_once_ * kTileSize) {}

  void run(int64_t model, int64_t first_row, int64_t end_row, const T* gate, const T* packed) {
    const Weights weights(in_, packed);
    Tile tiles[kMostTiles];
    int count = 0;
    for (int64_t row = first_row; row < end_row; row += kTileSize, ++count) {
      Tile& t = tiles[count];
      t.row = model * in_.rows + row;
      t.rows = least(kTileSize, end_row - row);
      t.registers = int(ceil_div(t.rows, W));
      t.log_r = log_r_ + count * in_.in * kTileSize;
      t.slots = slots_ + count * Phase<T>::groups(in_.in) * kTileRows;
      t.p = p_ + count * outs_at_once_ * kTileSize;
      t.q = q_ + count * outs_at_once_ * kTileSize;
      turn(t, in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in, gate);
    }
    for (int64_t first = 0; first < in_.out; first += outs_at_once_) {
      const int64_t end = least(first + outs_at_once_, in_.out);
      int64_t i0 = 0;
      do {
        for (int64_t o = first; o < end; o += kTileOuts)
          for (int t = 0; t < count; ++t)
            multiply(tiles[t], weights, i0, first, o, int(least<int64_t>(kTileOuts, end - o)));
        i0 += kInBlock;
      } while (i0 < in_.in);
      for (int64_t o = first; o < end; o += W)
        for (int t = 0; t < count; ++t) finish(tiles[t], first, o, int(least<int64_t>(W, end - o)));
    }
  }

 private:
  struct Tile {
    int64_t row, rows;  // the first of all models' rows, and how many
    int registers;
    bool negative;
    T *log_r, *p, *q;
    Slot* slots;
  };

  void turn(Tile& t, const T* x, const T* gate) {
    if (t.registers == 1) t.negative = log_panel<T, 1>(in_, x, t.rows, gate, t.log_r, t.slots);
    else if (t.registers == 2) t.negative = log_panel<T, 2>(in_, x, t.rows, gate, t.log_r, t.slots);
    else t.negative = log_panel<T, kTileRows>(in_, x, t.rows, gate, t.log_r, t.slots);
  }

  // Adds the inputs of the block from i0 on to P and Q of `outs` outs from o on, which are kept from `first` on.
  void multiply(const Tile& t, const Weights& weights, int64_t i0, int64_t first, int64_t o, int outs) {
    if (t.registers == 1) multiply_by<1>(t, weights, i0, first, o, outs);
    else if (t.registers == 2) multiply_by<2>(t, weights, i0, first, o, outs);
    else multiply_by<kTileRows>(t, weights, i0, first, o, outs);
  }

  template <int R>
  void multiply_by(const Tile& t, const Weights& weights, int64_t i0, int64_t first, int64_t o, int outs) {
    const int64_t ins = least(kInBlock, in_.in - i0), group = i0 / Phase<T>::inputs;
    const T* reals = weights.reals + (o * in_.in + i0 * outs) * Weights::parts;
    const T* phases =
        weights.phases + o * Weights::phases_per_out(in_) + group * outs * Weights::parts * Phase<T>::entries;
    const T* log_r = t.log_r + i0 * R * W;
    const Slot* slots = t.slots + group * R;
    T *p = t.p + (o - first) * R * W, *q = t.q + (o - first) * R * W;
    if (t.negative) product_tile_of<T, complex, true, R>(outs, log_r, slots, ins, reals, phases, i0 > 0, p, q);
    else product_tile_of<T, complex, false, R>(outs, log_r, slots, ins, reals, phases, i0 > 0, p, q);
  }

  // y and s of `outs` outs from o on.
  void finish(const Tile& t, int64_t first, int64_t o, int outs) {
    for (int r = 0; r < t.registers; ++r) {
      Reg y[W], s[W];
      for (int n = 0; n < outs; ++n) {
        const int64_t from = ((o - first + n) * t.registers + r) * W;
        const Reg size = VectorMath<T>::exp(S::load(t.p + from));
        Reg sine, cosine;
        VectorMath<T>::sincos(S::load(t.q + from), &sine, &cosine);
        y[n] = size * cosine;
        s[n] = size * sine;
      }
      const int valid = int(least<int64_t>(W, t.rows - r * W));
      const int64_t at = (t.row + r * W) * in_.out + o;
      store_columns<T>(f_.y + at, in_.out, valid, outs, y);
      if (f_.s != nullptr) store_columns<T>(f_.s + at, in_.out, valid, outs, s);
    }
  }

  const NpuForward<T>& f_;
  const NpuInputs<T>& in_;
  Scratch<T> log_r_;
  Scratch<Slot> slots_;
  const int64_t outs_at_once_;
  Scratch<T> p_, q_;
};

template <typename T, bool complex>
void forward(const NpuForward<T>& f, const Parallel& parallel) {
  using Rows = Chunk<T, complex>;
  using Weights = PackedWeights<T, complex>;
  const NpuInputs<T>& in = f.inputs;
  // Rows do not meet one another: how they are cut into chunks may follow from the number of threads.
  const int64_t tiles = ceil_div(in.rows, Rows::kTileSize);
  const int64_t share = ceil_div(tiles * in.models, 2 * parallel.threads);
  const int64_t chunk_tiles = parallel.threads > 1 ? least(share, Rows::tiles_for(in.in)) : Rows::tiles_for(in.in);
  const int64_t chunk_rows = most<int64_t>(chunk_tiles, 1) * Rows::kTileSize;
  const int64_t chunks = ceil_div(in.rows, chunk_rows);
  const int64_t packed_size = Weights::size(in);

  // Many models: each task packs the weights that it meets. One model: they are packed once, by all threads.
  const bool pack_shared = in.models == 1;
  Scratch<T> shared_gate(pack_shared ? in.in : 0), shared_packed(pack_shared ? packed_size : 0);
  const auto gates_of = [&](int64_t model, T* gate) {
    for (int64_t i = 0; i < in.in; ++i) gate[i] = in.gate == nullptr ? T(1) : clamp_gate(in.gate[model * in.in + i]);
  };
  if (pack_shared && chunks > 0) {
    gates_of(0, shared_gate);
    const Parallel serial;
    const Parallel& packers = packed_size > (1 << 18) ? parallel : serial;
    packers.over(ceil_div(in.out, kTileOuts), [&](int64_t begin, int64_t end) {
      Weights::pack(in, 0, shared_gate, begin * kTileOuts, least(end * kTileOuts, in.out), shared_packed);
    });
  }

  parallel.over(in.models * chunks, [&](int64_t begin, int64_t end) {
    Rows rows(f, chunk_rows / Rows::kTileSize);
    Scratch<T> own_gate(pack_shared ? 0 : in.in), own_packed(pack_shared ? 0 : packed_size);
    const T* gate = pack_shared ? shared_gate : own_gate;
    const T* packed = pack_shared ? shared_packed : own_packed;
    int64_t packed_model = pack_shared ? 0 : -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / chunks, row = task % chunks * chunk_rows;
      if (model != packed_model) {
        gates_of(model, own_gate);
        Weights::pack(in, model, own_gate, 0, in.out, own_packed);
        packed_model = model;
      }
      rows.run(model, row, least(row + chunk_rows, in.rows), gate, packed);
    }
  });
}

}  // namespace

template <typename T>
void npu_forward(const NpuForward<T>& f, const Parallel& parallel) {
  if (f.inputs.weight_im != nullptr) forward<T, true>(f, parallel);
  else forward<T, false>(f, parallel);
}

template void npu_forward<float>(const NpuForward<float>&, const Parallel&);
template void npu_forward<double>(const NpuForward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
