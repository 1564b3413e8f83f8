// Forward, mean squared error and backward of layers with few inputs and few outputs, all of a register of rows at
// once:
//
//   d = y - target        loss = sum d^2 / (B O)        grad_y = 2 d / (B O)
//
// and the gradients of npu/backward.cpp. Neither y nor grad_y is stored. Sums over rows run in a fixed order.
#pragma once

#include "npu/backward.h"
#include "npu/forward_tiny.h"

namespace npu {
namespace NPU_ISA {

template <typename T, bool complex>
class TinyStep {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Rows = TinyRows<T, complex>;
  static constexpr int W = S::width;
  static constexpr int R = Rows::kRows / W;
  static constexpr int64_t kMaxRows = 1024;  // of a model: threads share the rows of more
  static constexpr int kRun = 4;             // panels that a register adds up: errors grow with a run's length
  static constexpr int kSums = round_up(kParts<complex> * kTinyProducts + W + 1, W);

 public:
  static bool supports(const NpuInputs<T>& in) { return Limits<T>::is_tiny(in) && in.rows <= kMaxRows; }

  explicit TinyStep(const NpuStep<T>& f)
      : f_(f),
        in_(f.backward.inputs),
        rows_(in_),
        products_(int(in_.in * in_.out)),
        gate_at_(kParts<complex> * products_),
        loss_at_(gate_at_ + int(in_.in)) {}

  void run(int64_t model) {
    rows_.load_weights(model);
    const T *x = in_.x + model * f_.next_x, *target = f_.target + model * f_.next_target;
    if (model + 1 < in_.models) {
      fetch(x + f_.next_x, in_.rows * in_.in);
      fetch(target + f_.next_target, in_.rows * in_.out);
    }
    for (double& total : totals_) total = 0;
    for (int64_t row = 0; row < in_.rows;) {
      for (int n = 0; n <= loss_at_; ++n) sums_[n] = S::zero();
      for (int n = 0; n < kRun && row < in_.rows; ++n, row += Rows::kRows)
        add(x + row * in_.in, target + row * in_.out, in_.rows - row);
      add_lanes();
    }
    finish(model);
  }

 private:
  // Into the first-level cache: the rows of models that lie apart are not foreseen by the processor.
  static void fetch(const T* p, int64_t count) {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t n = 0; n < count; n += kLine) __builtin_prefetch(p + n);
  }

  void add(const T* x, const T* target, int64_t rows) {
    rows_.compute(x, rows, &panel_);
    Reg grad_p[Rows::kRows], grad_q[Rows::kRows];
    load_errors(target, rows, grad_p, grad_q);
    add_products(grad_p, grad_q);
    if (f_.backward.grad_gate != nullptr) add_gate(grad_p, grad_q);
  }

  // dP and dQ, and the sum of squares; 0 behind the last row, also where y is not finite there.
  void load_errors(const T* target, int64_t rows, Reg* grad_p, Reg* grad_q) {
    const int out = int(in_.out);
    const Reg scale = S::set1(T(2) / T(in_.rows * in_.out));
    Reg squares = S::zero(), t[W];
    for (int r = 0; r < R; ++r) {
      const int valid = Rows::valid(rows, r);
      load_few_columns<T>(target + r * W * out, valid, out, t);
      for (int o = 0, n = r * out; o < out; ++o, ++n) {
        const Reg y = first(panel_.y[n], valid), d = y - t[o];
        squares = S::fma(d, d, squares);
        grad_p[n] = scale * d * y;
        grad_q[n] = -(scale * d) * first(panel_.s[n], valid);
      }
    }
    sums_[loss_at_] = sums_[loss_at_] + squares;
  }

  static NPU_INLINE Reg first(Reg value, int lanes) {
    if (lanes == W) return value;
    T all[W];
    S::store(all, value);
    return S::load_first(all, lanes);
  }

  void add_products(const Reg* grad_p, const Reg* grad_q) {
    const int in = int(in_.in), out = int(in_.out);
    for (int o = 0, n = 0; o < out; ++o) {
      for (int i = 0; i < in; ++i, ++n) {
        Reg sum[4] = {};
        for (int r = 0; r < R; ++r) {
          const Reg log_r = panel_.log_r[r * in + i];
          sum[kSP] = S::fma(grad_p[r * out + o], log_r, sum[kSP]);
          if constexpr (complex) sum[kSQ] = S::fma(grad_q[r * out + o], log_r, sum[kSQ]);
        }
        for (int r = 0; panel_.negative && r < R; ++r) {
          const typename S::Mask& mask = panel_.mask[r * in + i];
          sum[kMQ] = S::add_masked(sum[kMQ], mask, grad_q[r * out + o]);
          if constexpr (complex) sum[kMP] = S::add_masked(sum[kMP], mask, grad_p[r * out + o]);
        }
        for (int part = 0; part < kParts<complex>; ++part) {
          Reg& total = sums_[part * products_ + n];
          total = total + sum[part];
        }
      }
    }
  }

  // The gate's sums: dr (|x| + eps - 1).
  void add_gate(const Reg* grad_p, const Reg* grad_q) {
    const int in = int(in_.in), out = int(in_.out);
    for (int i = 0; i < in; ++i) {
      const Gate<T> gate(S::set1(rows_.gate()[i]), S::set1(in_.eps));
      Reg dl[R] = {}, sum = S::zero();
      for (int o = 0; o < out; ++o) {
        const Reg re = S::set1(rows_.re()[o * in + i]);
        const Reg im = complex ? S::set1(rows_.im()[o * in + i]) : S::zero();
        for (int r = 0; r < R; ++r) {
          dl[r] = S::fma(grad_p[r * out + o], re, dl[r]);
          if constexpr (complex) dl[r] = S::fma(grad_q[r * out + o], im, dl[r]);
        }
      }
      for (int r = 0; r < R; ++r) gate.spread(dl[r], panel_.x[r * in + i], &sum);
      sums_[gate_at_ + i] = sums_[gate_at_ + i] + sum;
    }
  }

  // Adds a run's sums over their lanes to the totals.
  void add_lanes() {
    for (int n = 0; n <= loss_at_; n += W) {
      T lanes[W];
      S::store(lanes, S::sum_each(sums_ + n));
      for (int l = 0; l < W; ++l) totals_[n + l] += double(lanes[l]);
    }
  }

  void finish(int64_t model) {
    T sums[kParts<complex> * kTinyProducts], phases[W];
    for (int n = 0; n < gate_at_; ++n) sums[n] = T(totals_[n]);
    const int in = int(in_.in);
    const Reg gate = S::load_first(rows_.gate(), in);
    Reg phase = S::zero();
    for (int o = 0; o < int(in_.out); ++o) {
      Reg sum[4] = {};
      for (int part = 0; part < kParts<complex>; ++part)
        sum[part] = S::load_first(sums + part * products_ + o * in, in);
      weight_gradients<T, complex>(f_.backward, model * products_ + o * in, in, gate, sum, phase);
    }
    S::store(phases, phase);
    finish_gate<T>(f_.backward, model, totals_ + gate_at_, 1, phases);
    if (f_.loss != nullptr) f_.loss[model] = T(totals_[loss_at_] / double(in_.rows * in_.out));
  }

  const NpuStep<T>& f_;
  const NpuInputs<T>& in_;
  Rows rows_;
  const int products_, gate_at_, loss_at_;  // the sums: [part][O][I], the gate's [I], the loss
  typename Rows::Panel panel_;
  Reg sums_[kSums];
  double totals_[kSums];
};

template <typename T, bool complex>
bool step(const NpuStep<T>& f) {
  if (!TinyStep<T, complex>::supports(f.backward.inputs)) return false;
  TinyStep<T, complex> step(f);
  for (int64_t model = 0; model < f.backward.inputs.models; ++model) step.run(model);
  return true;
}

}  // namespace NPU_ISA
}  // namespace npu
