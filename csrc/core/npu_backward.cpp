// Backward of the Neural Power Unit family; the forward and its notation stand in npu_forward.cpp.
//
//   dP = grad_y y                 dQ = -grad_y s
//   SP = dP' L    SQ = dQ' L      real products    [O, I]
//   MP = dP' m    MQ = dQ' m      mask products    [O, I]
//   dWr = SP + pi MQ ghat         dWi = SQ - pi MP ghat
//   dL  = dP Wr + dQ Wi           dr = dL / r,  dx = dr ghat sign(x)
//   dghat = sum_b dr (|x| + eps - 1) + pi sum_o (Wr MQ - Wi MP)
//
// The last line takes the gate's phase gradient from the mask products that dW needs anyway: six real products and two
// mask products in all, where autograd through the formula runs twelve with the forward's. RealNPU: no dQ Wi, SQ, MP.
//
// Rows go in groups, whose number follows from the shape alone, and every sum over rows runs in a fixed order, so that
// results do not depend on the number of threads. Within a group there are two forms, by what a register holds.
#include <optional>

#include "npu_backward_narrow.h"
#include "npu_backward_wide.h"

namespace npu {
namespace NPU_ISA {
namespace {

template <typename T, bool complex>
class Backward {
 public:
  Backward(const NpuBackward<T>& f, const Parallel& parallel)
      : f_(f), in_(f.inputs), parallel_(parallel), wide_(in_.in >= Simd<T>::width) {
    groups_ = most<int64_t>(
        1, least<int64_t>(in_.rows / 512, least<int64_t>(16, (int64_t(1) << 20) / most<int64_t>(sums_size(), 1))));
    group_rows_ = ceil_div(in_.rows, groups_);
  }

  void run() {
    const int64_t tasks = in_.models * groups_;
    // One group: its sums become gradients at once, or are never stored. More: all are kept, and added in order.
    const bool together = groups_ > 1, direct = wide_ && wide::Group<T, complex>::writes_gradients(in_.rows);
    Scratch<T> partial(together ? tasks * task_size() : 0);
    const auto run_tasks = [&](int64_t begin, int64_t end, const Parallel& inner) {
      Scratch<T> own(together || direct ? 0 : task_size()), gate(in_.in), gate_sums(in_.in), phase_sums(in_.in);
      const wide::Group<T, complex> wide_group(f_);
      std::optional<narrow::Group<T, complex>> narrow_group;
      if (!wide_) narrow_group.emplace(f_, group_rows_);
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
        if (wide_) wide_group.run(task, inner);
        else narrow_group->run(task);
        if (direct) finish_gate(task.model, gate_sums, phase_sums);
        else if (!together) finish(task.model, task.sums, gate, phase_sums);
      }
    };
    const Parallel serial;
    if (wide_ && parallel_.threads > 1 && tasks < parallel_.threads) run_tasks(0, tasks, parallel_);
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
  const bool wide_;
  int64_t groups_, group_rows_;
};

}  // namespace

template <typename T>
void npu_backward(const NpuBackward<T>& f, const Parallel& parallel) {
  if (f.inputs.weight_im != nullptr) Backward<T, true>(f, parallel).run();
  else Backward<T, false>(f, parallel).run();
}

template void npu_backward<float>(const NpuBackward<float>&, const Parallel&);
template void npu_backward<double>(const NpuBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
