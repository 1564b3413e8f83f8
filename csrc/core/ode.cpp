// The time loop u' = A npu(u) by explicit Runge-Kutta steps, and its discrete adjoint. Formulas of a stage:
// ode_lanes.h.
//
//   forward    v_1 = u_n    k_i = f(v_i)    v_{i+1} = u_n + dt sum_{j <= i} a_ij k_j    u_{n+1} = u_n + dt sum_j b_j
//   k_j backward   g = gradient of u_{n+1};  last stage first:
//              dk_i = dt b_i g + dt sum_{j > i} a_{j-1,i} dv_j (+ that of derivatives, i = 1)    dv_i = J(v_i)' dk_i
//              gradient of u_n = g + sum_i dv_i + that of the trajectory
//
// Trajectories (rows: starts of models) lie across the lanes of registers (ode_lanes.h), a single one's hidden units do
// (ode_hidden.h). What the stages kept, or the trajectory
// itself, from which they are then computed again to the same bits, is all that the backward pass reads.
#include "ode_hidden.h"
#include "ode_lanes.h"
#include "ode_loop.h"

namespace npu {
namespace NPU_ISA {
namespace {

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
    if (!in.many_starts()) return {n * W, least(W, in.models * in.starts - n * W), n * W};
    const int64_t per_model = tasks / in.models, model = n / per_model, first = n % per_model * kRegisters * W;
    return {model * in.starts + first, least(kRegisters * W, in.starts - first),
            model * ceil_div(in.starts, kOdeBlock) * kOdeBlock + first};
  }
};

template <typename T, bool complex, int D>
void forward(const OdeForward<T>& f, const Parallel& parallel) {
  constexpr int64_t W = Simd<T>::width;
  const OdeInputs<T>& in = f.inputs;
  if (in.one()) return Loop<T, HiddenLanes<T, complex, D>>(in).forward(f, 0, 0, 1);
  const Plan plan = Plan::of(in);
  parallel.over(plan.tasks, [&](int64_t begin, int64_t end_task) {
    Loop<T, Lanes<T, complex, D>> loop(in);
    for (int64_t task = begin; task < end_task; ++task) {
      const Plan::Task t = plan.task(in, task);
      for (int64_t n = 0; n < t.rows; n += W) loop.forward(f, t.row + n, t.place + n, int(least(W, t.rows - n)));
    }
  });
}

// The sum of a model's partial gradients, in the order of their places.
template <typename T>
NPU_INLINE T total(const T* parts, int64_t count) {
  double sum = 0;
  for (int64_t n = 0; n < count; ++n) sum += double(parts[n]);
  return T(sum);
}

template <typename T, bool complex, int D>
void backward(const OdeBackward<T>& b, const Parallel& parallel) {
  constexpr int64_t W = Simd<T>::width;
  const OdeInputs<T>& in = b.inputs;
  if (in.one()) {
    Loop<T, HiddenLanes<T, complex, D>> loop(in);
    loop.units().clear_gradients();
    loop.backward(b, 0, 0, 1);
    return loop.units().write_gradients(b);
  }
  const Plan plan = Plan::of(in);
  const int64_t slots = in.models * plan.slots_per_model, d_count = in.features, h = in.hidden;
  Scratch<T> parts((3 * h + 1) * d_count * slots);
  parallel.over(plan.tasks, [&](int64_t begin, int64_t end_task) {
    Loop<T, Lanes<T, complex, D>> loop(in);
    for (int64_t task = begin; task < end_task; ++task) {
      const Plan::Task t = plan.task(in, task);
      loop.units().clear_gradients();
      for (int64_t n = 0; n < t.rows; n += W) loop.backward(b, t.row + n, t.place + n, int(least(W, t.rows - n)));
      const int lanes = int(least(W, slots - task * W));
      for (int64_t n = 0; n < loop.units().gradients(); ++n)
        Simd<T>::store_first(parts + n * slots + task * W, loop.units().gradient(n), lanes);
    }
  });
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

// Calls f with the number of features as a type, where registers are made for it; 0 is any number. Each number takes a
// tenth of the file's compile time. So the baseline, which must run but need not be fast, has none, and builds with
// sanitizers have one.
template <typename F>
void by_features(int64_t features, F&& f) {
  switch (features) {
#if NPU_VECTOR_BYTES > 16 || defined(NPU_USE_NEON)
    case 2:
      return f(std::integral_constant<int, 2>{});
#if !defined(NPU_SANITIZED)
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
#endif
#endif
    default:
      return f(std::integral_constant<int, 0>{});
  }
}

}  // namespace

template <typename T>
void ode_forward(const OdeForward<T>& f, const Parallel& parallel) {
  by_features(f.inputs.features, [&](auto features) {
    constexpr int D = decltype(features)::value;
    if (f.inputs.weight_im != nullptr) forward<T, true, D>(f, parallel);
    else forward<T, false, D>(f, parallel);
  });
}

template <typename T>
void ode_backward(const OdeBackward<T>& b, const Parallel& parallel) {
  by_features(b.inputs.features, [&](auto features) {
    constexpr int D = decltype(features)::value;
    if (b.inputs.weight_im != nullptr) backward<T, true, D>(b, parallel);
    else backward<T, false, D>(b, parallel);
  });
}

template void ode_forward<float>(const OdeForward<float>&, const Parallel&);
template void ode_forward<double>(const OdeForward<double>&, const Parallel&);
template void ode_backward<float>(const OdeBackward<float>&, const Parallel&);
template void ode_backward<double>(const OdeBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
