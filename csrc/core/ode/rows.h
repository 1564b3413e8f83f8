// How the trajectories of an ODE solver are cut into registers and tasks, and how their gradients are added up.
#pragma once

#include "api.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

// How rows are cut: into registers, and these into tasks. Few starts: a register holds those of several models. Many:
// a task is some registers of one model, whose lanes add up their gradients. Follows from the sizes alone.
struct Plan {
  static constexpr int64_t kRegisters = 16;  // of a task with many starts
  int64_t tasks, slots_per_model;            // slots: places for the lanes' partial gradients, W of each task

  struct Task {
    int64_t row, rows;
    int64_t place;  // of the first row, where every model's many starts begin a block of stages
  };

  template <typename T>
  static Plan of(const OdeInputs<T>& in) {
    constexpr int64_t W = Simd<T>::width;
    if (!in.many_starts()) return {ceil_div(in.models * in.starts, W), in.starts};
    const int64_t tasks = ceil_div(in.starts, kRegisters * W);
    return {in.models * tasks, tasks * W};
  }

  template <typename T>
  Task task(const OdeInputs<T>& in, int64_t n) const {
    constexpr int64_t W = Simd<T>::width;
    if (!in.many_starts()) return {n * W, min(W, in.models * in.starts - n * W), n * W};
    const int64_t per_model = tasks / in.models, model = n / per_model, first = n % per_model * kRegisters * W;
    return {model * in.starts + first, min(kRegisters * W, in.starts - first),
            model * ceil_div(in.starts, kOdeBlock) * kOdeBlock + first};
  }
};

// The sum of a model's partial gradients, in the order of their places.
template <typename T>
NPU_INLINE T total(const T* parts, int64_t count) {
  double sum = 0;
  for (int64_t n = 0; n < count; ++n) sum += double(parts[n]);
  return T(sum);
}

// The gradients of the weights, from the partial sums of the lanes' `gradients()`: [parts][models][slots per model].
template <typename T>
void add_up(const OdeBackward<T>& b, const Plan& plan, const Scratch<T>& parts, const Parallel& parallel) {
  const OdeInputs<T>& in = b.inputs;
  const int64_t slots = in.models * plan.slots_per_model, d_count = in.features, h = in.hidden;
  const int64_t per_model = plan.slots_per_model;
  parallel.over(in.models, [&](int64_t begin, int64_t end) {
    for (int64_t model = begin; model < end; ++model) {
      const auto sum = [&](int64_t n) { return total(parts + n * slots + model * per_model, per_model); };
      for (int64_t o = 0; o < h; ++o) {
        for (int64_t d = 0; d < d_count; ++d) {
          const int64_t at = (model * h + o) * d_count + d, transposed = (model * d_count + d) * h + o;
          const int64_t part = o * 3 * d_count + d;
          if (b.grad_weight_re != nullptr) b.grad_weight_re[at] = sum(part);
          if (b.grad_weight_im != nullptr) b.grad_weight_im[at] = sum(part + d_count);
          if (b.grad_weight != nullptr)
            b.grad_weight[transposed] = b.weight_passes(transposed) ? sum(part + 2 * d_count) : T(0);
        }
      }
      for (int64_t d = 0; b.grad_gate != nullptr && d < d_count; ++d) {
        const int64_t at = model * d_count + d;
        b.grad_gate[at] = b.gate_passes(at) ? sum(3 * h * d_count + d) : T(0);
      }
    }
  });
}

}  // namespace NPU_ISA
}  // namespace npu
