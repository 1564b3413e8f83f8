// The backward of layers with many inputs and one or a few outs: a register holds neighbouring inputs of a row, and one
// pass over the rows makes all that depends on these inputs. The sums over rows stay in registers.
#pragma once

#include "npu/backward.h"

namespace npu {
namespace NPU_ISA {
namespace few_outs {

#if defined(__AVX512F__)
constexpr int kMostOuts = 4;  // whose sums are 16 registers
#else
constexpr int kMostOuts = 2;
#endif

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
  static bool suits(const NpuInputs<T>& in) { return in.in >= W && in.out <= kMostOuts && in.out > 0; }
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
      with_constant<1, kMostOuts>(in_.out, [&](auto outs) {
        for (int64_t n = begin; n < end; ++n) run_inputs<decltype(outs)::value>(task, n * W);
      });
    });
  }

 private:
  // A register of inputs, from i on.
  template <int O>
  NPU_NOINLINE void run_inputs(const GroupTask<T>& task, int64_t i) const {
    const int count = int(least<int64_t>(W, in_.in - i));
    const Reg ghat = S::load_first(task.gate + i, count);
    const Gate<T> gate(ghat, S::set1(in_.eps));
    Reg weight[O][2] = {}, total[O][P] = {};
    for (int o = 0; o < O; ++o) {
      const int64_t at = (task.model * O + o) * in_.in + i;
      weight[o][0] = S::load_first(in_.weight_re + at, count);
      if constexpr (complex) weight[o][1] = S::load_first(in_.weight_im + at, count);
    }
    // Read once: the compiler thinks that a store could change them.
    const int64_t step = in_.in, rows = task.end - task.begin;
    const T* x = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + task.begin) * step + i;
    const T *p = grads_, *q = p + rows * O;
    T* grad_x = f_.grad_x == nullptr ? nullptr : f_.grad_x + (task.model * in_.rows + task.begin) * step + i;
    for (int64_t b = 0; b < rows;) {
      Reg sum[O][P] = {}, gate_sum = S::zero();
      for (const int64_t end = least(b + kRun, rows); b < end; ++b, x += step, p += O, q += O) {
        const Reg value = S::load_first(x, count);
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
      for (int o = 0; o < O; ++o)
        for (int part = 0; part < P; ++part) total[o][part] = total[o][part] + sum[o][part];
      T lanes[W];
      S::store(lanes, gate_sum);
      for (int l = 0; l < count; ++l) task.gate_sums[i + l] += double(lanes[l]);
    }
    if (!task.want_sums) return;
    Reg phase = S::zero();
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

}  // namespace few_outs
}  // namespace NPU_ISA
}  // namespace npu
