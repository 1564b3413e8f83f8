// The forward of a few rows.
#pragma once

#include "npu/forward.h"

namespace npu {
namespace NPU_ISA {

// Outputs [first, end) of all rows of a model, for which packing weights would cost more than their products, or a
// panel of which most lanes would be empty: a register holds neighbouring inputs, the weights are read as they lie, and
// every output ends in a sum over lanes.
template <typename T, bool complex>
class FewRows {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int R = 4;                                 // rows of a tile
  static constexpr int kBatch = 2 * R < W ? W / (2 * R) : 1;  // outputs whose P and Q fill registers for the sums
  static constexpr int kSums = (kBatch * 2 * R + W - 1) / W;  // registers of them

 public:
  explicit FewRows(const NpuForward<T>& f)
      : f_(f),
        in_(f.inputs),
        ins_(ceil_div(in_.in, W) * W),
        rows_(ceil_div(in_.rows, R) * R),
        outputs_(ceil_div(in_.out, W) * W),
        log_r_(rows_ * ins_),
        turn_(rows_ * ins_),
        p_(rows_ * outputs_ + W),  // a register may begin at any out
        q_(rows_ * outputs_ + W) {}

  void run(int64_t model, int64_t first_out, int64_t end_out, const T* gate) {
    prepare(in_.x + (in_.shared_x ? 0 : model * in_.rows) * in_.in, gate);
    for (int64_t o = first_out; o < end_out; o += kBatch)
      for (int64_t b = 0; b < in_.rows; b += R) multiply(model, b, o, int(min<int64_t>(kBatch, end_out - o)));
    for (int64_t b = 0; b < in_.rows; ++b) {
      for (int64_t o = first_out; o < end_out; o += W) {
        Reg y, s;
        finish_outputs<T>(S::load(p_ + b * outputs_ + o), S::load(q_ + b * outputs_ + o), &y, &s);
        const int count = int(min<int64_t>(W, end_out - o));
        const int64_t at = (model * in_.rows + b) * in_.out + o;
        S::store_first(f_.y + at, y, count);
        if (f_.s != nullptr) S::store_first(f_.s + at, s, count);
      }
    }
  }

 private:
  // L and pi ghat m, zero behind I and behind the last row.
  void prepare(const T* x, const T* gate) {
    const Reg eps = S::set1(in_.eps), pi = S::set1(T(kPi));
    for (int64_t b = 0; b < rows_; ++b) {
      for (int64_t i = 0; i < ins_; i += W) {
        const int count = int(min<int64_t>(W, in_.in - i));
        const Reg g = S::load_first(gate + i, count);
        const Reg v = b < in_.rows ? S::load_first(x + b * in_.in + i, count) : S::zero();
        S::store(log_r_ + b * ins_ + i, Gate<T>(g, eps).log(v));
        S::store(turn_ + b * ins_ + i, S::select(v < S::zero(), pi * g, S::zero()));
      }
    }
  }

  void multiply(int64_t model, int64_t b, int64_t o, int outputs) {
    Reg sums[kSums * W] = {};
    for (int n = 0; n < outputs; ++n) {
      const int64_t at = (model * in_.out + o + n) * in_.in;
      Reg p[R] = {}, q[R] = {};
      for (int64_t i = 0; i < in_.in; i += W) {
        const int count = int(min<int64_t>(W, in_.in - i));
        const Reg re = S::load_first(in_.weight_re + at + i, count);
        const Reg im = complex ? S::load_first(in_.weight_im + at + i, count) : S::zero();
        for (int r = 0; r < R; ++r) {
          const Reg l = S::load(log_r_ + (b + r) * ins_ + i), t = S::load(turn_ + (b + r) * ins_ + i);
          p[r] = S::fma(l, re, p[r]);
          q[r] = S::fma(t, re, q[r]);
          if constexpr (complex) {
            q[r] = S::fma(l, im, q[r]);
            p[r] = S::fma(-t, im, p[r]);
          }
        }
      }
      for (int r = 0; r < R; ++r) {
        sums[n * 2 * R + r] = p[r];
        sums[n * 2 * R + R + r] = q[r];
      }
    }
    T totals[kSums * W];
    for (int n = 0; n < kSums; ++n) S::store(totals + n * W, S::sum_each(sums + n * W));
    for (int n = 0; n < outputs; ++n) {
      for (int r = 0; r < R; ++r) {
        p_[(b + r) * outputs_ + o + n] = totals[n * 2 * R + r];
        q_[(b + r) * outputs_ + o + n] = totals[n * 2 * R + R + r];
      }
    }
  }

  const NpuForward<T>& f_;
  const NpuInputs<T>& in_;
  const int64_t ins_, rows_, outputs_;  // padded to whole registers and tiles
  Scratch<T> log_r_, turn_, p_, q_;
};

template <typename T, bool complex>
bool forward_few_rows(const NpuForward<T>& f, const Parallel& parallel) {
  const NpuInputs<T>& in = f.inputs;
  if (in.models * in.rows * in.out == 0) return true;
  // Ranges of outputs, each of which makes all logarithms anew.
  int64_t ranges = 1;
  if (parallel.threads > 1)
    ranges = max<int64_t>(1, min(in.out / Simd<T>::width, ceil_div(parallel.threads, in.models)));
  parallel.over(in.models * ranges, [&](int64_t begin, int64_t end) {
    FewRows<T, complex> rows(f);
    Scratch<T> gate(in.in);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / ranges, range = task % ranges;
      load_gate<T>(in, model, gate);
      rows.run(model, in.out * range / ranges, in.out * (range + 1) / ranges, gate);
    }
  });
  return true;
}

}  // namespace NPU_ISA
}  // namespace npu
