// The backward's rows in groups, whose number follows from the shape alone, and every sum over rows in a fixed order,
// so that results do not depend on the number of threads. What happens within a group is the business of a Form
// (npu_backward_narrow.h, npu_backward_wide.h, npu_tiles_backward.cpp).
#pragma once

#include "npu_backward.h"

namespace npu {
namespace NPU_ISA {

template <typename T, bool complex>
class BackwardGroups {
 public:
  BackwardGroups(const NpuBackward<T>& f, const Parallel& parallel) : f_(f), in_(f.inputs), parallel_(parallel) {
    groups_ = most<int64_t>(
        1, least<int64_t>(in_.rows / 512, least<int64_t>(16, (int64_t(1) << 20) / most<int64_t>(sums_size(), 1))));
    group_rows_ = ceil_div(in_.rows, groups_);
  }

  // `make` gives a Form for groups of at most so many rows, once per thread. A Form
  //   run(task, inner)         does a GroupTask; if it kShares, `inner` threads share the work of one
  //   writes_gradients(f)      whether a single group's sums become gradients at once and are never stored
  template <typename Make>
  void run(const Make& make) const {
    using Form = decltype(make(int64_t()));
    const int64_t tasks = in_.models * groups_;
    // One group: its sums become gradients at once, or are never stored. More: all are kept, and added in order.
    const bool together = groups_ > 1, direct = !together && Form::writes_gradients(f_);
    Scratch<T> partial(together ? tasks * task_size() : 0);
    const auto run_tasks = [&](int64_t begin, int64_t end, const Parallel& inner) {
      Scratch<T> own(together || direct ? 0 : task_size()), gate(in_.in), gate_sums(in_.in), phase_sums(in_.in);
      const Form form = make(group_rows_);
      for (int64_t n = begin; n < end; ++n) {
        GroupTask<T> task;
        task.model = n / groups_;
        task.begin = least(n % groups_ * group_rows_, in_.rows);
        task.end = least(task.begin + group_rows_, in_.rows);
        task.gate = gate;
        task.sums = direct ? nullptr : (together ? partial + n * task_size() : own);
        task.gate_sums = direct ? gate_sums : task.sums + sums_size();
        task.phase_sums = phase_sums;
        task.want_spread = f_.grad_x != nullptr || f_.grad_gate != nullptr;
        task.want_sums = f_.grad_weight_re != nullptr || f_.grad_weight_im != nullptr || f_.grad_gate != nullptr;
        load_gate(task.model, gate);
        form.run(task, inner);
        if (direct) finish_gate(task.model, gate_sums, phase_sums);
        else if (!together) finish(task.model, task.sums, gate, phase_sums);
      }
    };
    const Parallel serial;
    if (Form::kShares && parallel_.threads > 1 && tasks < parallel_.threads) run_tasks(0, tasks, parallel_);
    else parallel_.over(tasks, [&](int64_t begin, int64_t end) { run_tasks(begin, end, serial); });
    if (!together) return;
    parallel_.over(in_.models, [&](int64_t begin, int64_t end) {
      Scratch<T> gate(in_.in), phase(in_.in);
      for (int64_t model = begin; model < end; ++model) {
        load_gate(model, gate);
        finish(model, partial + model * groups_ * task_size(), gate, phase);
      }
    });
  }

 private:
  int64_t sums_size() const { return kParts<complex> * in_.out * in_.in; }
  int64_t task_size() const { return sums_size() + in_.in; }

  void load_gate(int64_t model, T* gate) const {
    for (int64_t i = 0; i < in_.in; ++i)
      gate[i] = in_.gate == nullptr ? T(1) : clamp_gate(in_.gate[model * in_.in + i]);
  }

  // Adds the groups' sums in order and turns them into the gradients of one model.
  void finish(int64_t model, const T* partial, const T* gate, T* phase) const {
    using S = Simd<T>;
    using Reg = typename S::Reg;
    const int64_t size = in_.out * in_.in;
    std::memset(phase, 0, size_t(in_.in) * sizeof(T));
    for (int64_t o = 0; o < in_.out; ++o) {
      for (int64_t i = 0; i < in_.in; i += S::width) {
        const int count = int(least<int64_t>(S::width, in_.in - i));
        Reg sum[4] = {};
        for (int64_t g = 0; g < groups_; ++g)
          for (int part = 0; part < kParts<complex>; ++part)
            sum[part] = sum[part] + S::load_first(partial + g * task_size() + part * size + o * in_.in + i, count);
        const int64_t at = model * size + o * in_.in + i;
        weight_gradients<T, complex>(f_, at, count, S::load_first(gate + i, count), sum, phase + i);
      }
    }
    finish_gate(model, partial + sums_size(), phase);
  }

  // The gate's gradient from the groups' sums over rows and the phase sums.
  void finish_gate(int64_t model, const T* gate_sums, const T* phase) const {
    if (f_.grad_gate == nullptr) return;
    for (int64_t i = 0; i < in_.in; ++i) {
      T grad = T(kPi) * phase[i];
      for (int64_t g = 0; g < groups_; ++g) grad += gate_sums[g * task_size() + i];
      const T raw = in_.gate[model * in_.in + i];
      const bool passes = f_.straight_through || (raw >= T(0) && raw <= T(1));
      f_.grad_gate[model * in_.in + i] = passes ? grad : T(0);
    }
  }

  const NpuBackward<T>& f_;
  const NpuInputs<T>& in_;
  const Parallel& parallel_;
  int64_t groups_, group_rows_;
};

}  // namespace NPU_ISA
}  // namespace npu
