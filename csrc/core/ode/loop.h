// The ODE solver and its adjoint, for every meaning of a register's lanes. Formulas: ode/fixed.cpp.
#pragma once

#include "api.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

// What a stage leaves for the backward pass, v, L, y, s, by registers.
template <typename T, typename Pointer>
struct Stage {
  Pointer at;
  int64_t stride;

  NPU_INLINE typename Simd<T>::Reg load(int64_t n) const { return Simd<T>::load(at + n * stride); }
  NPU_INLINE void store(int64_t n, typename Simd<T>::Reg r) const { Simd<T>::store(at + n * stride, r); }
};

// Registers by index: in registers where their number is known, in scratch otherwise.
template <typename Reg, int count>
struct Features {
  explicit Features(Reg*) {}
  NPU_INLINE Reg& operator[](int64_t d) { return values[d]; }
  Reg values[count];
};
template <typename Reg>
struct Features<Reg, 0> {
  explicit Features(Reg* scratch) : values(scratch) {}
  NPU_INLINE Reg& operator[](int64_t d) { return values[d]; }
  Reg* values;
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

// All steps of some trajectories. Units: Lanes or HiddenLanes, what a register holds.
template <typename T, typename Units>
class Loop {
  using S = Simd<T>;
  using Reg = typename S::Reg;

 public:
  explicit Loop(const OdeInputs<T>& in)
      : in_(in),
        tableau_(in),
        units_(in),
        u_(units_.registers()),
        v_(units_.registers() * in.stages),
        k_(units_.registers() * in.stages),
        g_(units_.registers()),
        scratch_(in.stages * units_.stage_size()),
        saved_stages_(in.steps * in.stages + in.last_stage) {}

  Units& units() { return units_; }

  void forward(const OdeForward<T>& f, int64_t row, int64_t place, int lanes) {
    const int64_t count = units_.registers(), stride = (in_.steps + 1) * in_.features;
    units_.pack(row, lanes);
    units_.load(f.u0 + row * in_.features, in_.features, lanes, u_);
    for (int64_t n = 0;; ++n) {
      units_.store(f.trajectory + row * stride + n * in_.features, stride, lanes, u_);
      if (n == in_.steps && f.derivatives == nullptr) break;
      units_.rhs(u_, k_, stage(f.stages, n, 0, place));
      if (f.derivatives != nullptr) units_.store(f.derivatives + row * stride + n * in_.features, stride, lanes, k_);
      if (n == in_.steps) break;
      for (int64_t i = 1; i < in_.stages; ++i) {
        tableau_.advance(i - 1, u_, k_, count, v_);
        units_.rhs(v_, k_ + i * count, stage(f.stages, n, i, place));
      }
      tableau_.advance(in_.stages - 1, u_, k_, count, u_);
    }
  }

  void backward(const OdeBackward<T>& b, int64_t row, int64_t place, int lanes) {
    const int64_t count = units_.registers(), stride = (in_.steps + 1) * in_.features, last = in_.stages - 1;
    units_.pack(row, lanes);
    for (int64_t d = 0; d < count; ++d) g_[d] = S::zero();
    for (int64_t n = in_.steps; n >= 0; --n) {
      const int64_t at = row * stride + n * in_.features;
      if (n < in_.steps || b.grad_derivatives != nullptr) {
        const int64_t stages = n < in_.steps ? in_.stages : 1;
        if (b.stages == nullptr) compute_again(b.trajectory + at, stride, stages, lanes);
        for (int64_t i = stages - 1; i >= 0; --i) {
          Reg* dk = k_;
          if (i == 0 && b.grad_derivatives != nullptr) units_.load(b.grad_derivatives + at, stride, lanes, dk);
          else
            for (int64_t d = 0; d < count; ++d) dk[d] = S::zero();
          for (int64_t d = 0; n < in_.steps && d < count; ++d) {
            dk[d] = S::fma(S::set1(tableau_.scaled(last, i)), g_[d], dk[d]);
            for (int64_t j = i + 1; j <= last; ++j)
              if (tableau_.at(j - 1, i) != 0)
                dk[d] = S::fma(S::set1(tableau_.scaled(j - 1, i)), v_[j * count + d], dk[d]);
          }
          units_.vjp(stage(b.stages, n, i, place), dk, v_ + i * count);
        }
        for (int64_t i = 0; i < stages; ++i)
          for (int64_t d = 0; d < count; ++d) g_[d] = g_[d] + v_[i * count + d];
      }
      if (b.grad_trajectory != nullptr) {
        units_.load(b.grad_trajectory + at, stride, lanes, u_);
        for (int64_t d = 0; d < count; ++d) g_[d] = g_[d] + u_[d];
      }
    }
    if (b.grad_u0 != nullptr) units_.store(b.grad_u0 + row * in_.features, in_.features, lanes, g_);
  }

 private:
  // Where stage i of step n lies: in the caller's memory, or in one step's that is used again and again.
  template <typename Pointer>
  Stage<T, Pointer> stage(Pointer stages, int64_t n, int64_t i, int64_t place) {
    if (stages == nullptr) return {scratch_ + i * units_.stage_size(), Units::kScratchStride};
    return units_.stage(stages, n * in_.stages + i, saved_stages_, place);
  }

  void compute_again(const T* state, int64_t stride, int64_t stages, int lanes) {
    const int64_t count = units_.registers();
    units_.load(state, stride, lanes, u_);
    units_.rhs(u_, k_, stage<T*>(nullptr, 0, 0, 0));
    for (int64_t i = 1; i < stages; ++i) {
      tableau_.advance(i - 1, u_, k_, count, v_);
      units_.rhs(v_, k_ + i * count, stage<T*>(nullptr, 0, i, 0));
    }
  }

  const OdeInputs<T>& in_;
  const Tableau<T> tableau_;
  Units units_;
  Scratch<Reg> u_, v_, k_, g_;
  Scratch<T> scratch_;
  const int64_t saved_stages_;
};

}  // namespace NPU_ISA
}  // namespace npu
