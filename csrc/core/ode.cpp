// The time loop u' = A npu(u) by explicit Runge-Kutta steps, and its discrete adjoint. Formulas of a stage:
// ode_lanes.h.
//
//   forward    v_1 = u_n    k_i = f(v_i)    v_{i+1} = u_n + dt sum_{j <= i} a_ij k_j    u_{n+1} = u_n + dt sum_j b_j
//   k_j backward   g = gradient of u_{n+1};  last stage first:
//              dk_i = dt b_i g + dt sum_{j > i} a_{j-1,i} dv_j (+ that of derivatives, i = 1)    dv_i = J(v_i)' dk_i
//              gradient of u_n = g + sum_i dv_i + that of the trajectory
//
// Trajectories (rows: starts of models) lie across the lanes of registers. What the stages kept, or the trajectory
// itself, from which they are then computed again to the same bits, is all that the backward pass reads.
#include "ode_lanes.h"

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

// The coefficients times dt, as registers: row i makes the state of stage i + 1, the last row the step.
template <typename T>
class Tableau {
  using S = Simd<T>;

 public:
  explicit Tableau(const OdeInputs<T>& in) : in_(in) {}
  // u + dt sum_j c_j k_j
  NPU_INLINE void advance(int64_t row, const typename S::Reg* u, const typename S::Reg* k, int64_t d_count,
                          typename S::Reg* to) const {
    for (int64_t d = 0; d < d_count; ++d) {
      typename S::Reg sum = u[d];
      for (int64_t j = 0; j <= row; ++j)
        if (at(row, j) != 0) sum = S::fma(S::set1(scaled(row, j)), k[j * d_count + d], sum);
      to[d] = sum;
    }
  }
  double at(int64_t row, int64_t j) const { return in_.tableau[row * (row + 1) / 2 + j]; }
  T scaled(int64_t row, int64_t j) const { return T(in_.dt * at(row, j)); }

 private:
  const OdeInputs<T>& in_;
};

// D values of some rows, in one register each.
template <typename T>
NPU_INLINE void load_rows(const T* from, int64_t stride, int lanes, int64_t d_count, typename Simd<T>::Reg* to) {
  constexpr int W = Simd<T>::width;
  for (int64_t d = 0; d < d_count; d += W)
    load_columns<T>(from + d, stride, lanes, int(least<int64_t>(W, d_count - d)), to + d);
}
template <typename T>
NPU_INLINE void store_rows(T* to, int64_t stride, int lanes, int64_t d_count, const typename Simd<T>::Reg* from) {
  constexpr int W = Simd<T>::width;
  for (int64_t d = 0; d < d_count; d += W)
    store_columns<T>(to + d, stride, lanes, int(least<int64_t>(W, d_count - d)), from + d);
}

template <typename T, bool complex, int D>
class Loop {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;

 public:
  explicit Loop(const OdeInputs<T>& in)
      : in_(in),
        tableau_(in),
        lanes_(in),
        u_(in.features),
        v_(in.features * in.stages),
        k_(in.features * in.stages),
        g_(in.features),
        kept_(in.stages * 2 * (in.features + in.hidden) * W),
        stages_kept_(in.steps * in.stages + in.last_stage) {}

  Lanes<T, complex, D>& lanes() { return lanes_; }

  void forward(const OdeForward<T>& f, int64_t row, int64_t place, int lanes) {
    const int64_t d_count = lanes_.features(), stride = (in_.steps + 1) * d_count;
    lanes_.pack(row, lanes);
    load_rows(f.u0 + row * d_count, d_count, lanes, d_count, +u_);
    for (int64_t n = 0;; ++n) {
      store_rows(f.trajectory + row * stride + n * d_count, stride, lanes, d_count, u_);
      if (n == in_.steps && f.derivatives == nullptr) break;
      lanes_.slope(u_, k_, stage(f.stages, n, 0, place));
      if (f.derivatives != nullptr) store_rows(f.derivatives + row * stride + n * d_count, stride, lanes, d_count, k_);
      if (n == in_.steps) break;
      for (int64_t i = 1; i < in_.stages; ++i) {
        tableau_.advance(i - 1, u_, k_, d_count, v_);
        lanes_.slope(v_, k_ + i * d_count, stage(f.stages, n, i, place));
      }
      tableau_.advance(in_.stages - 1, u_, k_, d_count, u_);
    }
  }

  void backward(const OdeBackward<T>& b, int64_t row, int64_t place, int lanes) {
    const int64_t d_count = lanes_.features(), stride = (in_.steps + 1) * d_count, last = in_.stages - 1;
    lanes_.pack(row, lanes);
    for (int64_t d = 0; d < d_count; ++d) g_[d] = S::zero();
    for (int64_t n = in_.steps; n >= 0; --n) {
      const int64_t at = row * stride + n * d_count;
      if (n < in_.steps || b.grad_derivatives != nullptr) {
        const int64_t stages = n < in_.steps ? in_.stages : 1;
        if (b.stages == nullptr) compute_again(b.trajectory + at, stride, stages, lanes);
        for (int64_t i = stages - 1; i >= 0; --i) {
          Reg* dk = k_;
          if (i == 0 && b.grad_derivatives != nullptr) load_rows(b.grad_derivatives + at, stride, lanes, d_count, dk);
          else
            for (int64_t d = 0; d < d_count; ++d) dk[d] = S::zero();
          for (int64_t d = 0; n < in_.steps && d < d_count; ++d) {
            dk[d] = S::fma(S::set1(tableau_.scaled(last, i)), g_[d], dk[d]);
            for (int64_t j = i + 1; j <= last; ++j)
              if (tableau_.at(j - 1, i) != 0)
                dk[d] = S::fma(S::set1(tableau_.scaled(j - 1, i)), v_[j * d_count + d], dk[d]);
          }
          lanes_.pull(stage(b.stages, n, i, place), dk, v_ + i * d_count);
        }
        for (int64_t i = 0; i < stages; ++i)
          for (int64_t d = 0; d < d_count; ++d) g_[d] = g_[d] + v_[i * d_count + d];
      }
      if (b.grad_trajectory != nullptr) {
        load_rows(b.grad_trajectory + at, stride, lanes, d_count, +u_);
        for (int64_t d = 0; d < d_count; ++d) g_[d] = g_[d] + u_[d];
      }
    }
    if (b.grad_u0 != nullptr) store_rows(b.grad_u0 + row * d_count, d_count, lanes, d_count, g_);
  }

 private:
  // Where stage i of step n lies: in the caller's memory, or in one step's that is used again and again.
  template <typename Pointer>
  Stage<T, Pointer> stage(Pointer stages, int64_t n, int64_t i, int64_t place) {
    const int64_t size = 2 * (lanes_.features() + in_.hidden);
    if (stages == nullptr) return {kept_ + i * size * W, W};
    return {stages + ((place / kOdeBlock * stages_kept_) + n * in_.stages + i) * size * kOdeBlock + place % kOdeBlock,
            kOdeBlock};
  }

  void compute_again(const T* state, int64_t stride, int64_t stages, int lanes) {
    const int64_t d_count = lanes_.features();
    load_rows(state, stride, lanes, d_count, +u_);
    lanes_.slope(u_, k_, stage<T*>(nullptr, 0, 0, 0));
    for (int64_t i = 1; i < stages; ++i) {
      tableau_.advance(i - 1, u_, k_, d_count, v_);
      lanes_.slope(v_, k_ + i * d_count, stage<T*>(nullptr, 0, i, 0));
    }
  }

  const OdeInputs<T>& in_;
  const Tableau<T> tableau_;
  Lanes<T, complex, D> lanes_;
  Scratch<Reg> u_, v_, k_, g_;
  Scratch<T> kept_;
  const int64_t stages_kept_;
};

template <typename T, bool complex, int D>
void forward(const OdeForward<T>& f, const Parallel& parallel) {
  constexpr int64_t W = Simd<T>::width;
  const OdeInputs<T>& in = f.inputs;
  const Plan plan = Plan::of(in);
  parallel.over(plan.tasks, [&](int64_t begin, int64_t end_task) {
    Loop<T, complex, D> loop(in);
    for (int64_t task = begin; task < end_task; ++task) {
      const Plan::Task t = plan.task(in, task);
      for (int64_t n = 0; n < t.rows; n += W) loop.forward(f, t.row + n, t.place + n, int(least(W, t.rows - n)));
    }
  });
}

// The sum of a model's partial gradients, in the order of their places.
template <typename T>
NPU_INLINE T total(const T* parts, int64_t count) {
  T sum = 0;
  for (int64_t n = 0; n < count; ++n) sum += parts[n];
  return sum;
}

template <typename T, bool complex, int D>
void backward(const OdeBackward<T>& b, const Parallel& parallel) {
  constexpr int64_t W = Simd<T>::width;
  const OdeInputs<T>& in = b.inputs;
  const Plan plan = Plan::of(in);
  const int64_t slots = in.models * plan.slots_per_model, d_count = in.features, h = in.hidden;
  Scratch<T> parts((3 * h + 1) * d_count * slots);
  parallel.over(plan.tasks, [&](int64_t begin, int64_t end_task) {
    Loop<T, complex, D> loop(in);
    for (int64_t task = begin; task < end_task; ++task) {
      const Plan::Task t = plan.task(in, task);
      loop.lanes().clear_gradients();
      for (int64_t n = 0; n < t.rows; n += W) loop.backward(b, t.row + n, t.place + n, int(least(W, t.rows - n)));
      const int lanes = int(least(W, slots - task * W));
      for (int64_t n = 0; n < loop.lanes().gradients(); ++n)
        Simd<T>::store_first(parts + n * slots + task * W, loop.lanes().gradient(n), lanes);
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
          const T a = in.weight[transposed];
          const bool passes = !in.clip || (a >= T(-1) && a <= T(1));
          if (b.grad_weight != nullptr) b.grad_weight[transposed] = passes ? sum(part + 2 * d_count) : T(0);
        }
      }
      for (int64_t d = 0; b.grad_gate != nullptr && d < d_count; ++d) {
        const T gate = in.gate[model * d_count + d];
        const bool passes = b.straight_through || (gate >= T(0) && gate <= T(1));
        b.grad_gate[model * d_count + d] = passes ? sum(3 * h * d_count + d) : T(0);
      }
    }
  });
}

template <typename T, bool complex>
void forward_by_features(const OdeForward<T>& f, const Parallel& parallel) {
  switch (f.inputs.features) {
    case 1:
      return forward<T, complex, 1>(f, parallel);
    case 2:
      return forward<T, complex, 2>(f, parallel);
    case 3:
      return forward<T, complex, 3>(f, parallel);
    case 4:
      return forward<T, complex, 4>(f, parallel);
    default:
      return forward<T, complex, 0>(f, parallel);
  }
}

template <typename T, bool complex>
void backward_by_features(const OdeBackward<T>& b, const Parallel& parallel) {
  switch (b.inputs.features) {
    case 1:
      return backward<T, complex, 1>(b, parallel);
    case 2:
      return backward<T, complex, 2>(b, parallel);
    case 3:
      return backward<T, complex, 3>(b, parallel);
    case 4:
      return backward<T, complex, 4>(b, parallel);
    default:
      return backward<T, complex, 0>(b, parallel);
  }
}

}  // namespace

template <typename T>
void ode_forward(const OdeForward<T>& f, const Parallel& parallel) {
  if (f.inputs.weight_im != nullptr) forward_by_features<T, true>(f, parallel);
  else forward_by_features<T, false>(f, parallel);
}

template <typename T>
void ode_backward(const OdeBackward<T>& b, const Parallel& parallel) {
  if (b.inputs.weight_im != nullptr) backward_by_features<T, true>(b, parallel);
  else backward_by_features<T, false>(b, parallel);
}

template void ode_forward<float>(const OdeForward<float>&, const Parallel&);
template void ode_forward<double>(const OdeForward<double>&, const Parallel&);
template void ode_backward<float>(const OdeBackward<float>&, const Parallel&);
template void ode_backward<double>(const OdeBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
