// The backward of layers with one or a few outputs (npu/limits.h): a register holds neighbouring inputs of a row, and
// one pass over the rows makes all that depends on these inputs. The sums over rows stay in registers.
#pragma once

#include "npu/backward.h"

namespace npu {
namespace NPU_ISA {
namespace few_outputs {

// Bytes of x in a block of rows: this block and the next one, with their gradients, take half a second-level cache.
constexpr int64_t kBlock = int64_t(1) << 17;

template <typename T, bool complex>
class Group {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int P = kParts<complex>;

 public:
  using Order = PlainOrder<T, complex>;
  static constexpr bool kShares = true;
  static constexpr int64_t kSpan = 1024;
  static bool writes_gradients(const NpuBackward<T>&) { return true; }

  // For spans of at most so many rows.
  Group(const NpuBackward<T>& f, int64_t rows) : f_(f), in_(f.inputs), grads_(2 * rows * in_.out) {}

  void run(const GroupTask<T>& task, const Parallel& inner) const {
    std::memset(task.phase_sums, 0, size_t(in_.in) * sizeof(T));
    const int64_t from = (task.model * in_.rows + task.begin) * in_.out, count = (task.end - task.begin) * in_.out;
    T *p = grads_, *q = p + count;
    for (int64_t n = 0; n < count; ++n) {
      p[n] = f_.grad_y[from + n] * f_.y[from + n];
      q[n] = -f_.grad_y[from + n] * f_.s[from + n];
    }
    inner.over(ceil_div(in_.in, W), [&](int64_t begin, int64_t end) {
      with_constant<1, kBackwardFewOutputs>(
          in_.out, [&](auto outputs) { run_blocks<decltype(outputs)::value>(task, begin, end); });
    });
  }

 private:
  // Some registers of inputs, in blocks of rows that the second-level cache holds: memory is read in the order of its
  // addresses. It is several times slower where each register takes its own lines of all rows.
  template <int O>
  void run_blocks(const GroupTask<T>& task, int64_t begin, int64_t end) const {
    constexpr int64_t kTotals = O * P * W;
    const int64_t rows = task.end - task.begin;
    const int64_t block = max<int64_t>(kRun, kBlock / (in_.in * int64_t(sizeof(T))) / kRun * kRun);
    const Scratch<T> totals((end - begin) * kTotals);
    std::memset(totals, 0, size_t((end - begin) * kTotals) * sizeof(T));
    for (int64_t b = 0; b < rows; b += block)
      for (int64_t n = begin; n < end; ++n)
        run_inputs<O>(task, n * W, b, min(b + block, rows), totals + (n - begin) * kTotals);
    if (!task.want_sums) return;
    for (int64_t n = begin; n < end; ++n) store_totals<O>(task, n * W, totals + (n - begin) * kTotals);
  }

  // A register of inputs, from i on, of a block's rows. Fetches an equal part of the next block.
  template <int O>
  NPU_NOINLINE void run_inputs(const GroupTask<T>& task, int64_t i, int64_t begin, int64_t end, T* totals) const {
    const int count = int(min<int64_t>(W, in_.in - i));
    const Reg ghat = S::load_first(task.gate + i, count);
    const Gate<T> gate(ghat, S::set1(in_.eps));
    Reg weight[O][2] = {};
    for (int o = 0; o < O; ++o) {
      const int64_t at = (task.model * O + o) * in_.in + i;
      weight[o][0] = S::load_first(in_.weight_re + at, count);
      if constexpr (complex) weight[o][1] = S::load_first(in_.weight_im + at, count);
    }
    // Read once: the compiler thinks that a store could change them.
    const int64_t step = in_.in, rows = task.end - task.begin;
    const int64_t model_rows = task.model * in_.rows, first = task.begin + begin;
    const T* const x_block = in_.x + ((in_.shared_x ? 0 : model_rows) + first) * step;
    T* const grad_block = f_.grad_x == nullptr ? nullptr : f_.grad_x + (model_rows + first) * step;
    NextRows<T, 1> next_x(x_block, end - begin, step, i);
    NextRows<T, 1, true> next_grad(grad_block, end - begin, step, i);
    const T* x = x_block + i;
    const T *p = grads_ + begin * O, *q = p + rows * O;
    T* grad_x = grad_block == nullptr ? nullptr : grad_block + i;
    for (int64_t b = begin; b < end;) {
      Reg sum[O][P] = {}, gate_sum = S::zero();
      for (const int64_t run_end = min(b + kRun, end); b < run_end; ++b, x += step, p += O, q += O) {
        const Reg value = S::load_first(x, count);
        next_x.fetch();
        next_grad.fetch();
        const Reg l = gate.log(value);
        typename S::Mask negative;
        S::store_negative(&negative, value);
        Reg dl = S::zero();
        for (int o = 0; o < O; ++o) {
          const Reg dp = S::set1(p[o]), dq = S::set1(q[o]);
          sum[o][kSP] = S::fma(dp, l, sum[o][kSP]);
          sum[o][kMQ] = S::add_masked(sum[o][kMQ], negative, dq);
          dl = S::fma(dp, weight[o][0], dl);
          if constexpr (complex) {
            sum[o][kSQ] = S::fma(dq, l, sum[o][kSQ]);
            sum[o][kMP] = S::add_masked(sum[o][kMP], negative, dp);
            dl = S::fma(dq, weight[o][1], dl);
          }
        }
        if (!task.want_spread) continue;
        const Reg dx = gate.spread(dl, value, &gate_sum);
        if (grad_x == nullptr) continue;
        S::store_first(grad_x, dx, count);
        grad_x += step;
      }
      T* total = totals;
      for (int o = 0; o < O; ++o)
        for (int part = 0; part < P; ++part, total += W) S::store(total, S::load(total) + sum[o][part]);
      T lanes[W];
      S::store(lanes, gate_sum);
      for (int l = 0; l < count; ++l) task.gate_sums[i + l] += double(lanes[l]);
    }
  }

  // The weights' sums of a register of inputs, or their gradients.
  template <int O>
  void store_totals(const GroupTask<T>& task, int64_t i, const T* totals) const {
    const int count = int(min<int64_t>(W, in_.in - i));
    const Reg ghat = S::load_first(task.gate + i, count);
    const int64_t step = in_.in;
    Reg total[O][P], phase = S::zero();
    for (int o = 0; o < O; ++o)
      for (int part = 0; part < P; ++part, totals += W) total[o][part] = S::load(totals);
    for (int o = 0; o < O; ++o) {
      const int64_t at = o * step + i;
      if (task.sums == nullptr)
        weight_gradients<T, complex>(f_, task.model * O * step + at, count, ghat, total[o], phase);
      else
        for (int part = 0; part < P; ++part) S::store_first(task.sums + part * O * step + at, total[o][part], count);
    }
    if (task.sums == nullptr) S::store_first(task.phase_sums + i, phase, count);
  }

  const NpuBackward<T>& f_;
  const NpuInputs<T>& in_;
  Scratch<T> grads_;  // dP [rows][O], then dQ
};

}  // namespace few_outputs
}  // namespace NPU_ISA
}  // namespace npu
