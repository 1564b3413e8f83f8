// The backward's rows in groups, whose number follows from the shape alone, and every sum over rows in a fixed order,
// so that results do not depend on the number of threads. A group's rows go in spans: the sums of a span are made in T,
// and those of spans and of groups added up in double, so that rounding errors do not grow with the number of rows.
// What happens within a span is the business of a Form (npu/backward_narrow.h, npu/backward_wide.h,
// npu/backward_few_outputs.h, npu/tiled_backward.cpp).
#pragma once

#include "npu/backward.h"
#include "row_groups.h"

// Of what is called for whole groups only: inlined, it would be compiled again for every caller.
#define NPU_ONCE __attribute__((noinline))

namespace npu {
namespace NPU_ISA {

template <typename T, bool complex>
class BackwardGroups {
  using S = Simd<T>;
  using Reg = typename S::Reg;

 public:
  BackwardGroups(const NpuBackward<T>& f, const Parallel& parallel) : f_(f), in_(f.inputs), parallel_(parallel) {
    const int64_t sums = max<int64_t>(kParts<complex> * in_.out * in_.in, 1);
    const int64_t wanted = min<int64_t>(in_.rows / 512, 16), room = (int64_t(1) << 20) / sums;
    // A power of two, the nearest one, so that 2, 4 or 8 threads get equally many.
    for (groups_ = 1; 3 * groups_ <= 2 * wanted && 2 * groups_ <= room;) groups_ *= 2;
    group_rows_ = ceil_div(in_.rows, groups_);
  }

  // `make` gives a Form for spans of at most so many rows, once per thread. A Form
  //   kSpan                    rows of a span at most: fewer would cost time where the sums are large, for their
  //                            additions in double
  //   Order                    how many the weight sums are, and where a register of them lies
  //   run(task, inner)         does a GroupTask; if it kShares, `inner` threads share the work of one
  //   writes_gradients(f)      whether the sums of a span that is all rows become gradients at once, and are never
  //                            stored
  template <typename Make>
  void run(const Make& make) const {
    using Form = decltype(make(int64_t()));
    if (in_.rows == 0) clear();
    else if (group_rows_ > Form::kSpan) run_spans(make);
    else run_groups(make);
  }

 private:
  // Groups of one span each.
  template <typename Make>
  void run_groups(const Make& make) const {
    using Form = decltype(make(int64_t()));
    const int64_t tasks = in_.models * groups_, size = Form::Order::size(in_);
    // One group: its sums become gradients at once, or are never stored. More: all are kept, and added in order.
    const bool together = groups_ > 1, direct = !together && Form::writes_gradients(f_);
    Scratch<T> partial(together ? tasks * size : 0);
    Scratch<double> gate_partial(together ? tasks * in_.in : 0);
    over_tasks<Form>(tasks, [&](int64_t begin, int64_t end, const Parallel& inner) NPU_ONCE {
      Scratch<T> own(together || direct ? 0 : size), gate(in_.in), phase_sums(in_.in);
      Scratch<double> gate_own(together ? 0 : in_.in);
      const Form form = make(group_rows_);
      for (int64_t n = begin; n < end; ++n) {
        GroupTask<T> task = group(n, gate, phase_sums);
        task.sums = direct ? nullptr : (together ? partial + n * size : own);
        task.gate_sums = together ? gate_partial + n * in_.in : gate_own;
        std::memset(task.gate_sums, 0, size_t(in_.in) * sizeof(double));
        form.run(task, inner);
        if (direct) finish_gate<T>(f_, task.model, task.gate_sums, groups_, phase_sums);
        else if (!together) finish<Form>(task.model, task.sums, task.gate_sums, gate, phase_sums);
      }
    });
    if (together) finish_all<Form>(static_cast<T*>(partial), gate_partial);
  }

  // Groups of several spans.
  template <typename Make>
  void run_spans(const Make& make) const {
    using Form = decltype(make(int64_t()));
    const int64_t tasks = in_.models * groups_, size = Form::Order::size(in_);
    Scratch<double> total(tasks * size), gate_total(tasks * in_.in);
    over_tasks<Form>(tasks, [&](int64_t begin, int64_t end, const Parallel& inner) NPU_ONCE {
      Scratch<T> sums(size), gate(in_.in), phase_sums(in_.in);
      const Form form = make(Form::kSpan);
      for (int64_t n = begin; n < end; ++n) {
        GroupTask<T> task = group(n, gate, phase_sums);
        const int64_t first = task.begin, last = task.end;
        task.sums = sums;
        task.gate_sums = gate_total + n * in_.in;
        std::memset(task.gate_sums, 0, size_t(in_.in) * sizeof(double));
        for (; task.begin < last; task.begin += Form::kSpan) {
          task.end = min(task.begin + Form::kSpan, last);
          form.run(task, inner);
          add_span(static_cast<const T*>(sums), size, task.begin == first, total + n * size, inner);
        }
      }
    });
    finish_all<Form>(static_cast<double*>(total), gate_total);
  }

  // run(begin, end, inner) over all tasks: the threads take tasks, or share the work of one.
  template <typename Form, typename Run>
  void over_tasks(int64_t tasks, const Run& run) const {
    const Parallel serial;
    if (Form::kShares && parallel_.threads > 1 && tasks < parallel_.threads) run(0, tasks, parallel_);
    else parallel_.over(tasks, [&](int64_t begin, int64_t end) { run(begin, end, serial); });
  }

  // The n-th group of all models; loads its model's gate.
  GroupTask<T> group(int64_t n, T* gate, T* phase_sums) const {
    GroupTask<T> task;
    task.model = n / groups_;
    task.begin = n % groups_ * group_rows_;
    task.end = min(task.begin + group_rows_, in_.rows);
    task.gate = gate;
    task.phase_sums = phase_sums;
    task.want_spread = f_.grad_x != nullptr || f_.grad_gate != nullptr;
    task.want_sums = f_.grad_weight_re != nullptr || f_.grad_weight_im != nullptr || f_.grad_gate != nullptr;
    load_gate(in_, task.model, gate);
    return task;
  }

  // Adds the groups' sums in order and turns them into the gradients. Sums in T are added in place of the first
  // group's.
  template <typename Form, typename Sum>
  void finish_all(Sum* partial, const double* gate_partial) const {
    constexpr bool in_place = std::is_same<Sum, T>::value;
    const int64_t size = Form::Order::size(in_), step = in_place ? groups_ * size : size;
    Scratch<T> own(in_place ? 0 : in_.models * size);
    T* sums = own;
    if constexpr (in_place) sums = partial;
    add_groups(partial, size, sums, step);
    parallel_.over(in_.models, [&](int64_t begin, int64_t end) NPU_ONCE {
      Scratch<T> gate(in_.in), phase(in_.in);
      for (int64_t model = begin; model < end; ++model) {
        load_gate<T>(in_, model, gate);
        finish<Form>(model, sums + model * step, gate_partial + model * groups_ * in_.in, gate, phase);
      }
    });
  }

  // [K][groups][size] -> [K][size], rounded once; those of a model are `step` apart.
  template <typename Sum>
  void add_groups(const Sum* partial, int64_t size, T* sums, int64_t step) const {
    constexpr int64_t kBlock = 512;
    const int64_t blocks = ceil_div(size, kBlock), groups = groups_;
    parallel_.over(in_.models * blocks, [&, partial, size, sums, step](int64_t begin, int64_t end) NPU_ONCE {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t model = n / blocks, at = n % blocks * kBlock, count = min(kBlock, size - at);
        const Sum* from = partial + model * groups * size + at;
        T* const to = sums + model * step + at;
        if (groups == 2) {
#pragma GCC ivdep  // `to` is `from`, or far from it
          for (int64_t l = 0; l < count; ++l) to[l] = T(from[l] + from[size + l]);
          continue;
        }
        double total[kBlock];
        for (int64_t l = 0; l < count; ++l) total[l] = double(from[l]);
        for (int64_t g = 1; g < groups; ++g) {
          from += size;
          for (int64_t l = 0; l < count; ++l) total[l] += double(from[l]);
        }
        for (int64_t l = 0; l < count; ++l) to[l] = T(total[l]);
      }
    });
  }

  // The gradients of one model, from the sums over all its rows.
  template <typename Form>
  void finish(int64_t model, const T* sums, const double* gate_sums, const T* gate, T* phase) const {
    std::memset(phase, 0, size_t(in_.in) * sizeof(T));
    for (int64_t o = 0; o < in_.out; ++o) {
      for (int64_t i = 0; i < in_.in; i += S::width) {
        const int count = int(min<int64_t>(S::width, in_.in - i));
        Reg sum[4] = {};
        for (int part = 0; part < kParts<complex>; ++part)
          sum[part] = S::load_first(sums + Form::Order::at(in_, part, o, i), count);
        const int64_t at = (model * in_.out + o) * in_.in + i;
        Reg added = S::load_first(phase + i, count);
        weight_gradients<T, complex>(f_, at, count, S::load_first(gate + i, count), sum, added);
        S::store_first(phase + i, added, count);
      }
    }
    finish_gate<T>(f_, model, gate_sums, groups_, phase);
  }

  // The gradients of no rows, for any weights.
  void clear() const {
    const auto zero = [](T* grad, int64_t count) {
      if (grad != nullptr) std::memset(grad, 0, size_t(count) * sizeof(T));
    };
    zero(f_.grad_weight_re, in_.models * in_.out * in_.in);
    zero(f_.grad_weight_im, in_.models * in_.out * in_.in);
    zero(f_.grad_gate, in_.models * in_.in);
  }

  const NpuBackward<T>& f_;
  const NpuInputs<T>& in_;
  const Parallel& parallel_;
  int64_t groups_, group_rows_;
};

}  // namespace NPU_ISA
}  // namespace npu
