// The forward of the NPU in which a register holds outputs of one row, for 16 registers of eight or four lanes; the
// formulas stand in npu/forward.cpp. A RealNPU has half the products, and gains nothing.
//
// L of a chunk of rows needs no transposition, nor do y and s. The weights of a register of outputs are packed for
// some inputs at a time, and meet all rows of the chunk from the first-level cache. The mask products come from tables
// of the phases of four neighbouring inputs each (npu/sign_tables.h).
#pragma once

#include "npu/forward.h"
#include "npu/sign_tables.h"
#include "product.h"

namespace npu {
namespace NPU_ISA {
namespace outputs {

constexpr int kTileRows = 6;  // P and Q of so many rows are 12 registers
// Inputs whose weights are packed at a time, and which an accumulator adds up.
constexpr int64_t kTerms = 64;
// Inputs of a chunk's panel, and its bytes: for the second-level cache.
constexpr int64_t kInBlock = 6 * kTerms, kPanel = int64_t(384) << 10;
constexpr int64_t kMinRows = 8 * kTileRows, kMaxRows = 80 * kTileRows;

// Outputs [first_out, end_out) of some rows of one model.
template <typename T>
class Chunk {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int kParts = 2;
  using Tables = SignTables<T, kParts>;  // of Q, of P
  static constexpr int kGroup = kSigns, kEntry = Tables::entry;

 public:
  static int64_t max_rows(int64_t in) {
    const int64_t rows = kPanel / (min(in, kInBlock) * int64_t(sizeof(T)));
    return max(kMinRows, min(kMaxRows, rows / kTileRows * kTileRows));
  }

  Chunk(const NpuForward<T>& f, int64_t rows, int64_t outputs)
      : f_(f),
        in_(f.inputs),
        ins_(round_up(min(in_.in, kInBlock), max(W, kGroup))),
        log_r_(rows * ins_),
        offsets_(rows * ins_ / kGroup),
        negative_(ceil_div(rows, kTileRows)),
        kept_(in_.in > kInBlock ? ceil_div(outputs, W) : 1),
        sums_(kept_ * rows * 2 * W) {}

  void run(int64_t model, int64_t row, int64_t end_row, int64_t first_out, int64_t end_out, const T* gate) {
    model_ = model, row_ = row, rows_ = end_row - row;
    int64_t i0 = 0;
    do {
      const int64_t ins = min(kInBlock, in_.in - i0);
      const bool negative = prepare(i0, ins, gate);
      for (int64_t o = first_out; o < end_out; o += W) {
        T* const sums = sums_ + (kept_ > 1 ? (o - first_out) / W * rows_ * 2 * W : 0);
        const int count = int(min<int64_t>(W, end_out - o));
        const int64_t step = round_up(ceil_div(ins, max<int64_t>(1, ceil_div(ins, kTerms))), kGroup);
        int64_t i = 0;
        do {
          pack(o, count, i0 + i, min(step, ins - i), gate, negative);
          multiply(i, min(step, ins - i), i0 + i > 0, sums);
          i += step;
        } while (i < ins);
        if (i0 + ins == in_.in) finish(o, count, sums);
      }
      i0 += kInBlock;
    } while (i0 < in_.in);
  }

 private:
  // L of the block of inputs, and where the entries of its groups lie in their tables; returns whether any x is
  // negative.
  bool prepare(int64_t i0, int64_t ins, const T* gate) {
    const T* const x = in_.x + ((in_.shared_x ? 0 : model_ * in_.rows) + row_) * in_.in + i0;
    const T* const last = in_.x + (in_.shared_x ? 1 : in_.models) * in_.rows * in_.in;
    const Reg eps = S::set1(in_.eps);
    std::memset(negative_, 0, size_t(ceil_div(rows_, kTileRows)) * sizeof(bool));
    bool any = false;
    for (int64_t i = 0; i < ins; i += W) {
      const int count = int(min<int64_t>(W, ins - i));
      const Gate<T> g(S::load_first(gate + i0 + i, count), eps);  // 0 behind I: r = 1, L = 0
      const unsigned lanes = (1u << count) - 1;
      // A whole register where memory has one: what lies behind I is another row's, and never used.
      const int64_t whole = (last - (x + i)) >= W ? min(rows_, (last - (x + i) - W) / max<int64_t>(1, in_.in) + 1) : 0;
      for (int64_t b = 0; b < rows_; ++b) {
        const T* const from = x + b * in_.in + i;
        const Reg value = b < whole ? S::load(from) : S::load_first(from, count);
        S::store(log_r_ + b * ins_ + i, g.log(value));
        const unsigned signs = S::negative_bits(value) & lanes;
        uint8_t* const offset = offsets_ + (b * ins_ + i) / kGroup;
        for (int n = 0; n < W / kGroup; ++n) offset[n] = Tables::offset((signs >> n * kGroup) % Tables::entries);
        negative_[b / kTileRows] |= signs != 0;
      }
    }
    for (int64_t n = 0; n < ceil_div(rows_, kTileRows); ++n) any |= negative_[n];
    return any;
  }

  // The weights of `count` outputs and some inputs: reals_ [inputs][wr, wi], and (negative) tables_
  // [groups][entries][of pi ghat wr, of -pi ghat wi].
  void pack(int64_t o, int count, int64_t i0, int64_t ins, const T* gate, bool negative) {
    const int64_t first = (model_ * in_.out + o) * in_.in + i0;
    for (int64_t i = 0; i < ins; i += W) {
      const int inputs = int(min<int64_t>(W, ins - i));
      for (int part = 0; part < kParts; ++part) {
        Reg column[W];
        load_columns<T>((part ? in_.weight_im : in_.weight_re) + first + i, in_.in, count, inputs, column);
        for (int n = 0; n < inputs; ++n) S::store(reals_ + (i + n) * kEntry + part * W, column[n]);
      }
    }
    for (int64_t i = 0; negative && i < ins; i += kGroup) {
      const int inputs = int(min<int64_t>(kGroup, ins - i));
      for (int part = 0; part < kParts; ++part) {
        Tables::fill(tables_ + i / kGroup * Tables::size + part * W, inputs, [&](int n) __attribute__((always_inline)) {
          const T angle = (part ? -T(kPi) : T(kPi)) * gate[i0 + i + n];
          return S::set1(angle) * S::load(reals_ + (i + n) * kEntry + part * W);
        });
      }
    }
  }

  // sums [rows][P, Q] = or (resume) += the products with the packed weights of inputs [i, i + ins) of the block.
  void multiply(int64_t i, int64_t ins, bool resume, T* sums) const {
    for (int64_t b = 0; b < rows_; b += kTileRows) {
      with_constant<1, kTileRows>(min<int64_t>(kTileRows, rows_ - b), [&](auto rows) {
        constexpr int R = decltype(rows)::value;
        if (negative_[b / kTileRows]) tile<true, R>(b, i, ins, resume, sums + b * 2 * W);
        else tile<false, R>(b, i, ins, resume, sums + b * 2 * W);
      });
    }
  }

  template <bool negative, int R>
  NPU_NOINLINE void tile(int64_t b, int64_t i, int64_t ins, bool resume, T* to) const {
    const T *log_r = log_r_ + b * ins_ + i, *real = reals_, *table = tables_;
    const uint8_t* offset = offsets_ + (b * ins_ + i) / kGroup;
    const int64_t step = ins_;  // read once: the compiler thinks that a store could change it
    Reg p[R], q[R];
    each<R>([&](auto r) __attribute__((always_inline)) { p[r] = q[r] = S::zero(); });
    const auto multiply = [&]() __attribute__((always_inline)) {
      const Reg re = S::load(real), im = S::load(real + W);
      for (int r = 0; r < R; ++r) {
        const Reg l = S::set1(log_r[r * step]);
        S::accumulate(p[r], l, re);
        S::accumulate(q[r], l, im);
      }
      ++log_r, real += kEntry;
    };
    const auto turn = [&]() __attribute__((always_inline)) {
      for (int r = 0; r < R; ++r) {
        const T* const entry = table + offset[r * step / kGroup];
        q[r] = q[r] + S::load(entry);
        p[r] = p[r] + S::load(entry + W);
      }
      ++offset, table += Tables::size;
    };
    for (; ins >= kGroup; ins -= kGroup) {
      for (int n = 0; n < kGroup; ++n) multiply();
      if constexpr (negative) turn();
    }
    if (ins > 0) {
      for (; ins > 0; --ins) multiply();
      if constexpr (negative) turn();
    }
    for (int r = 0; r < R; ++r, to += 2 * W) {
      S::store(to, resume ? S::load(to) + p[r] : p[r]);
      S::store(to + W, resume ? S::load(to + W) + q[r] : q[r]);
    }
  }

  // y and s of `count` outputs from o on.
  void finish(int64_t o, int count, const T* sums) const {
    const int64_t step = in_.out;
    const T* from = sums;
    T* y = f_.y + (model_ * in_.rows + row_) * step + o;
    T* s = f_.s == nullptr ? nullptr : f_.s + (model_ * in_.rows + row_) * step + o;
    for (int64_t b = 0; b < rows_; ++b, from += 2 * W, y += step) {
      Reg of_y, of_s;
      finish_outputs<T>(S::load(from), S::load(from + W), &of_y, &of_s);
      S::store_first(y, of_y, count);
      if (s == nullptr) continue;
      S::store_first(s, of_s, count);
      s += step;
    }
  }

  const NpuForward<T>& f_;
  const NpuInputs<T>& in_;
  const int64_t ins_;  // of a row of the panel
  Scratch<T> log_r_;
  Scratch<uint8_t> offsets_;  // of each group of inputs, in its table
  Scratch<bool> negative_;    // of each tile of rows: whether any x is
  const int64_t kept_;        // registers of outputs whose sums wait for the next block of inputs
  Scratch<T> sums_;
  alignas(64) T reals_[kTerms * kEntry], tables_[kTerms / kGroup * Tables::size];
  int64_t model_ = 0, row_ = 0, rows_ = 0;
};

template <typename T>
bool forward(const NpuForward<T>& f, const Parallel& parallel) {
  const NpuInputs<T>& in = f.inputs;
  if (in.models * in.rows * in.in * in.out == 0) return false;
  // Neither rows nor outputs meet one another: how they are cut into tasks may follow from the number of threads. A
  // range of outputs makes all logarithms anew.
  int64_t rows = Chunk<T>::max_rows(in.in), ranges = 1;
  if (parallel.threads > 1) {
    rows = max(kMinRows, min(rows, round_up(ceil_div(in.rows * in.models, 2 * parallel.threads), kTileRows)));
    const int64_t chunks = in.models * ceil_div(in.rows, rows);
    ranges = max<int64_t>(1, min(in.out / Simd<T>::width, ceil_div(parallel.threads, chunks)));
  }
  rows = min(rows, in.rows);
  const int64_t chunks = ceil_div(in.rows, rows), registers = ceil_div(in.out, int64_t(Simd<T>::width));
  const auto first_out = [&](int64_t range) { return min(registers * range / ranges * Simd<T>::width, in.out); };
  parallel.over(in.models * chunks * ranges, [&](int64_t begin, int64_t end) {
    Scratch<T> gate(in.in);
    Chunk<T> chunk(f, rows, min(in.out, ceil_div(registers, ranges) * Simd<T>::width));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / (chunks * ranges), part = task / ranges % chunks, range = task % ranges;
      if (task == begin || task % (chunks * ranges) == 0) load_gate<T>(in, model, gate);
      chunk.run(model, part * rows, min((part + 1) * rows, in.rows), first_out(range), first_out(range + 1), gate);
    }
  });
  return true;
}

}  // namespace outputs
}  // namespace NPU_ISA
}  // namespace npu
