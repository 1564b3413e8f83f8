// The ODE solver of u' = A npu(u) by explicit Runge-Kutta steps, and its discrete adjoint. Formulas of a stage:
// ode/lanes.h.
//
//   forward    v_1 = u_n    k_i = f(v_i)    v_{i+1} = u_n + dt sum_{j <= i} a_ij k_j
//              u_{n+1} = u_n + dt sum_j b_j k_j
//   backward   g = gradient of u_{n+1};  last stage first:
//              dk_i = dt b_i g + dt sum_{j > i} a_{j-1,i} dv_j (+ that of derivatives, i = 1)    dv_i = J(v_i)' dk_i
//              gradient of u_n = g + sum_i dv_i + that of the trajectory
//
// Trajectories (rows: starts of models) lie across the lanes of registers (ode/lanes.h), a single one's hidden units do
// (ode/hidden.h). The backward pass reads what the stages saved, or the trajectory alone: then the stages are computed
// again from it, bitwise identical.
#include "ode/hidden.h"
#include "ode/lanes.h"
#include "ode/loop.h"
#include "ode/rows.h"

namespace npu {
namespace NPU_ISA {
namespace {

template <typename T, int D>
void forward(const OdeForward<T>& f, const Parallel& parallel) {
  constexpr int64_t W = Simd<T>::width;
  const OdeInputs<T>& in = f.inputs;
  if (in.one()) return Loop<T, HiddenLanes<T, D>>(in).forward(f, 0, 0, 1);
  const Plan plan = Plan::of(in);
  parallel.over(plan.tasks, [&](int64_t begin, int64_t end_task) {
    Loop<T, Lanes<T, D>> loop(in);
    for (int64_t task = begin; task < end_task; ++task) {
      const Plan::Task t = plan.task(in, task);
      for (int64_t n = 0; n < t.rows; n += W) loop.forward(f, t.row + n, t.place + n, int(min(W, t.rows - n)));
    }
  });
}

template <typename T, int D>
void backward(const OdeBackward<T>& b, const Parallel& parallel) {
  constexpr int64_t W = Simd<T>::width;
  const OdeInputs<T>& in = b.inputs;
  if (in.one()) {
    Loop<T, HiddenLanes<T, D>> loop(in);
    loop.units().clear_gradients();
    loop.backward(b, 0, 0, 1);
    return loop.units().write_gradients(b);
  }
  const Plan plan = Plan::of(in);
  const int64_t slots = in.models * plan.slots_per_model;
  Scratch<T> parts((3 * in.hidden + 1) * in.features * slots);
  parallel.over(plan.tasks, [&](int64_t begin, int64_t end_task) {
    Loop<T, Lanes<T, D>> loop(in);
    for (int64_t task = begin; task < end_task; ++task) {
      const Plan::Task t = plan.task(in, task);
      loop.units().clear_gradients();
      for (int64_t n = 0; n < t.rows; n += W) loop.backward(b, t.row + n, t.place + n, int(min(W, t.rows - n)));
      const int lanes = int(min(W, slots - task * W));
      for (int64_t n = 0; n < loop.units().gradients(); ++n)
        Simd<T>::store_first(parts + n * slots + task * W, loop.units().gradient(n), lanes);
    }
  });
  add_up(b, plan, parts, parallel);
}

// Calls f with the number of features as a type, where registers are made for it; 0 is any number. Each number takes a
// tenth of the file's compile time. So the baseline of x86, which must run but need not be fast, has none, and builds
// with sanitizers have one.
template <typename F>
void by_features(int64_t features, F&& f) {
#if NPU_VECTOR_BYTES == 16 && !defined(__aarch64__)
  constexpr int first = 1, last = 0;
#elif defined(NPU_SANITIZED)
  constexpr int first = 2, last = 2;
#else
  constexpr int first = 1, last = 4;
#endif
  if (!with_constant<first, last>(features, f)) f(std::integral_constant<int, 0>{});
}

}  // namespace

template <typename T>
void ode_forward(const OdeForward<T>& f, const Parallel& parallel) {
  by_features(f.inputs.features, [&](auto features) { forward<T, decltype(features)::value>(f, parallel); });
}

template <typename T>
void ode_backward(const OdeBackward<T>& b, const Parallel& parallel) {
  by_features(b.inputs.features, [&](auto features) { backward<T, decltype(features)::value>(b, parallel); });
}

template void ode_forward<float>(const OdeForward<float>&, const Parallel&);
template void ode_forward<double>(const OdeForward<double>&, const Parallel&);
template void ode_backward<float>(const OdeBackward<float>&, const Parallel&);
template void ode_backward<double>(const OdeBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
