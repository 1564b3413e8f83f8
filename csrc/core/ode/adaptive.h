// Adaptive steps: the control of one trajectory's steps, and the steps of a register of trajectories.
//
// The control is Hairer, Norsett and Wanner's (npu_kernels/_time_loop/adaptive_reference.py has its formulas); times
// and sizes are in double. The steps of an implicit method are in ode/implicit.h.
#pragma once

#include <cmath>
#include <limits>

#include "ode/adaptive_api.h"
#include "ode/loop.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

// How a trajectory ended; kRunning: it has not. As in adaptive_reference.py.
enum OdeEnd : int64_t { kRunning = -1, kDone, kTooMany, kStuck, kNotFinite, kStiff };

// The control of one trajectory's steps.
class StepControl {
  static constexpr double kBeta = 0.04, kSafety = 0.9, kLeast = 0.1, kMost = 5, kEps = 0x1p-52;

 public:
  double time, size, first_at_bound = std::numeric_limits<double>::quiet_NaN();
  int64_t accepted = 0, rejected = 0, at_bound = 0, status, evaluations = 0;
  double h, next_time;  // of the step to try

  StepControl() : time(0), size(0), status(kDone) {}
  // From the root mean squares of the start and of its slope, in units of the tolerance: Hairer's first guess.
  void begin(double first, double last, double d0, double d1, bool finite) {
    time = first;
    end_ = last;
    span_ = std::fabs(last - first);
    d1_ = d1;
    h0_ = d0 < 1e-5 || d1 < 1e-5 ? 1e-6 : 0.01 * d0 / d1;
    if (!(h0_ <= span_)) h0_ = span_;
    status = finite ? kRunning : kNotFinite;
  }
  double first_guess() const { return sign() * h0_; }
  // bend: the root mean square of the slope's change over the first guess.
  void choose_first(double bend) {
    const double d2 = bend / h0_, most = d1_ > d2 ? d1_ : d2;
    double h1 = most <= 1e-15 ? std::fmax(1e-6, h0_ * 1e-3) : std::pow(0.01 / most, 0.2);
    if (!std::isfinite(d2)) h1 = h0_ * 1e-3;
    size = std::fmin(100 * h0_, h1);  // next() ends at the last time
  }

  double sign() const { return end_ > time ? 1 : -1; }
  // Whether there is a step to try.
  bool next(int64_t max_steps, int64_t max_at_bound) {
    h = 0;
    if (status != kRunning) return false;
    if (at_bound >= max_at_bound && 2 * at_bound >= accepted) {
      status = kStiff;
    } else if (accepted + rejected >= max_steps) {
      status = kTooMany;
    } else if (size <= 10 * kEps * std::fmax(std::fabs(time), kEps * span_)) {
      status = broken_ ? kNotFinite : kStuck;
    } else {
      last_ = 1.01 * size >= std::fabs(end_ - time);
      next_time = last_ ? end_ : time + sign() * size;
      h = next_time - time;
      return true;
    }
    return false;
  }
  // Whether the step tried is accepted. error: in units of the tolerance; bound: it is as long as stability allows.
  bool judge(double error, bool bound) {
    broken_ = !std::isfinite(error);
    const double factor = std::pow(error, 0.2 - 0.75 * kBeta) / kSafety, length = std::fabs(h);
    if (!(error <= 1)) {
      ++rejected;
      size = length / std::fmin(factor, kMost);  // kMost also where the factor is nan
      shrunk_ = true;
      return false;
    }
    const double grown = length / std::fmax(factor / std::pow(before_, kBeta), kLeast);
    size = shrunk_ ? std::fmin(grown, length) : grown;
    shrunk_ = false;
    before_ = std::fmax(error, 1e-4);
    if (bound && at_bound++ == 0) first_at_bound = time;
    ++accepted;
    return true;
  }
  // Rejects the step tried, whose stages have no solution. broken: it is not finite.
  void refuse(bool broken) {
    broken_ = broken;
    ++rejected;
    size = std::fabs(h) / (broken ? kMost : 2);
    shrunk_ = true;
  }
  void move() {
    time = next_time;
    if (last_) status = kDone;
  }

 private:
  double end_ = 0, span_ = 0, h0_ = 0, d1_ = 0, before_ = 1e-4;
  bool shrunk_ = false, broken_ = false, last_ = false;
};

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
        kept_(units_.stage_size() * kStages) {}

  Units& units() { return units_; }
  const OdePair& pair() const { return pair_; }
  int64_t count() const { return count_; }
  Reg* k(int64_t stage) const { return k_ + stage * count_; }
  Reg* v(int64_t stage) const { return v_ + stage * count_; }  // v(6) is the new state
  Reg q(int64_t power, int64_t d) const { return q_[power * count_ + d]; }

  // k of the first stage.
  void begin(const Reg* u) { units_.slope(u, k(0), stage(0)); }
  // The states and slopes of the stages behind the first, up to `last`, of steps of size h.
  void run(const Reg* u, Reg h, int last) {
    for (int i = 1; i <= last; ++i) {
      advance(i - 1, u, h, v(i));
      units_.slope(v(i), k(i), stage(i));
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
  Stage<T, T*> stage(int64_t i) { return {kept_ + i * units_.stage_size(), Units::kScratchStride}; }

 private:
  const OdePair pair_;
  Units units_;
  const int64_t count_;
  Scratch<Reg> v_, k_, q_;
  Scratch<T> kept_;
};

}  // namespace NPU_ISA
}  // namespace npu
