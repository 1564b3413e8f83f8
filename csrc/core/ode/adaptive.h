// The stages of one adaptive step of an explicit method, for a register of trajectories (an implicit method's:
// ode/implicit.h). The control of the steps is in ode/step_control.h.
#pragma once

#include "ode/adaptive_api.h"
#include "ode/loop.h"
#include "ode/step_control.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

// A layer sees |u| + eps, so that its derivative jumps at u = 0: there states are known to kOdeJump eps and no better
// (npu_kernels/ode/_adaptive.py).
constexpr double kOdeJump = 10;

// The stages of a step. Units: Lanes, a register of trajectories.
template <typename T, typename Units>
class PairStep {
  using S = Simd<T>;
  using Reg = typename S::Reg;

 public:
  static constexpr bool kImplicit = false;
  static constexpr int kStages = OdePair::kStages, kPowers = OdePair::kPowers;
  static constexpr int64_t kScratchStride = Units::kScratchStride;

  PairStep(const OdeInputs<T>& in, const OdePair& pair)
      : pair_(pair),
        units_(in),
        count_(units_.registers()),
        v_(count_ * kStages),
        k_(count_ * kStages),
        q_(count_ * kPowers),
        scratch_(units_.stage_size() * kStages) {}

  Units& units() { return units_; }
  const OdePair& pair() const { return pair_; }
  int64_t count() const { return count_; }
  Reg* k(int64_t stage) const { return k_ + stage * count_; }
  Reg* v(int64_t stage) const { return v_ + stage * count_; }  // v(6) is the new state
  Reg q(int64_t power, int64_t d) const { return q_[power * count_ + d]; }

  // k of the first stage.
  void begin(const Reg* u) { units_.rhs(u, k(0), stage(0)); }
  // The states and derivatives of the stages behind the first, up to `last`, of steps of size h.
  void run(const Reg* u, Reg h, int last) {
    for (int i = 1; i <= last; ++i) {
      advance(i - 1, u, h, v(i));
      units_.rhs(v(i), k(i), stage(i));
    }
  }
  // u + h sum_j a_ij k_j
  void advance(int row, const Reg* u, Reg h, Reg* to) const {
    for (int64_t d = 0; d < count_; ++d) {
      Reg sum = S::zero();
      for (int j = 0; j <= row; ++j)
        if (pair_.a(row, j) != 0) sum = S::fma(S::set1(T(pair_.a(row, j))), k(j)[d], sum);
      to[d] = S::fma(h, sum, u[d]);
    }
  }
  // The interpolant's polynomials, u + h (q_0 x + q_1 x^2 + ..).
  void interpolant() {
    for (int p = 0; p < kPowers; ++p) {
      for (int64_t d = 0; d < count_; ++d) {
        Reg sum = S::zero();
        for (int j = 0; j < kStages; ++j)
          if (pair_.dense(j, p) != 0) sum = S::fma(S::set1(T(pair_.dense(j, p))), k(j)[d], sum);
        q_[p * count_ + d] = sum;
      }
    }
  }
  Stage<T, T*> stage(int64_t i) { return {scratch_ + i * units_.stage_size(), Units::kScratchStride}; }

 private:
  const OdePair pair_;
  Units units_;
  const int64_t count_;
  Scratch<Reg> v_, k_, q_;
  Scratch<T> scratch_;
};

}  // namespace NPU_ISA
}  // namespace npu
