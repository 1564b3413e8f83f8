// Adaptive steps of u' = A npu(u), and their discrete adjoint. Trajectories lie across the lanes of registers
// (ode/lanes.h), a single one too: its decisions and bits are those that it has among others.
#include "ode/adaptive_backward.h"
#include "ode/adaptive_forward.h"
#include "ode/implicit.h"
#include "ode/lanes.h"
#include "ode/rows.h"

namespace npu {
namespace NPU_ISA {
namespace {

// Calls body(task, row, lanes) for every register of every task.
template <typename T, typename F>
void each_register(const OdeInputs<T>& in, const Plan& plan, int64_t task, const F& body) {
  constexpr int64_t W = Simd<T>::width;
  const Plan::Task t = plan.task(in, task);
  for (int64_t n = 0; n < t.rows; n += W) body(t.row + n, int(min(W, t.rows - n)));
}

template <typename T, typename Step, typename... Tolerances>
void forward_by(const OdeAdaptiveForward<T>& f, const Parallel& parallel, Tolerances... tolerances) {
  const Plan plan = Plan::of(f.inputs);
  parallel.over(plan.tasks, [&](int64_t begin, int64_t end) {
    AdaptiveForward<T, Step> trajectories(f, tolerances...);
    for (int64_t task = begin; task < end; ++task)
      each_register(f.inputs, plan, task, [&](int64_t row, int lanes) { trajectories.run(row, lanes); });
  });
}

template <typename T, typename Step, typename... Tolerances>
void backward_by(const OdeAdaptiveBackward<T>& b, const Parallel& parallel, Tolerances... tolerances) {
  constexpr int64_t W = Simd<T>::width;
  const OdeInputs<T>& in = b.gradients.inputs;
  const Plan plan = Plan::of(in);
  const int64_t slots = in.models * plan.slots_per_model;
  Scratch<T> parts((3 * in.hidden + 1) * in.features * slots);
  parallel.over(plan.tasks, [&](int64_t begin, int64_t end) {
    AdaptiveBackward<T, Step> trajectories(b, tolerances...);
    auto& units = trajectories.units();
    for (int64_t task = begin; task < end; ++task) {
      units.clear_gradients();
      each_register(in, plan, task, [&](int64_t row, int lanes) { trajectories.run(row, lanes); });
      const int lanes = int(min(W, slots - task * W));
      for (int64_t n = 0; n < units.gradients(); ++n)
        Simd<T>::store_first(parts + n * slots + task * W, units.gradient(n), lanes);
    }
  });
  add_up(b.gradients, plan, parts, parallel);
}

}  // namespace

template <typename T>
void ode_adaptive_forward(const OdeAdaptiveForward<T>& f, const Parallel& parallel) {
  if (f.pair.implicit()) forward_by<T, ImplicitStep<T, Lanes<T, 0>>>(f, parallel, f.rtol, f.atol);
  else forward_by<T, PairStep<T, Lanes<T, 0>>>(f, parallel);
}

template <typename T>
void ode_adaptive_backward(const OdeAdaptiveBackward<T>& b, const Parallel& parallel) {
  if (b.pair.implicit()) backward_by<T, ImplicitStep<T, Lanes<T, 0>>>(b, parallel, b.rtol, b.atol);
  else backward_by<T, PairStep<T, Lanes<T, 0>>>(b, parallel);
}

template void ode_adaptive_forward<float>(const OdeAdaptiveForward<float>&, const Parallel&);
template void ode_adaptive_forward<double>(const OdeAdaptiveForward<double>&, const Parallel&);
template void ode_adaptive_backward<float>(const OdeAdaptiveBackward<float>&, const Parallel&);
template void ode_adaptive_backward<double>(const OdeAdaptiveBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
