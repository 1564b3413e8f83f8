// The control of one trajectory's adaptive steps: their sizes, which are accepted, and how they end.
//
// It is Hairer, Norsett and Wanner's (npu_kernels/ode/_adaptive.py has its formulas); times and sizes
// are in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "simd/simd.h"

namespace npu {
namespace NPU_ISA {

// How a trajectory ended; kRunning: it has not. As in adaptive_reference.py.
enum OdeEnd : int64_t { kRunning = -1, kDone, kTooMany, kStuck, kNotFinite, kStiff };

// The control of one trajectory's steps.
class StepControl {
  static constexpr double kBeta = 0.04, kSafety = 0.9, kLeast = 0.1, kMax = 5, kEps = 0x1p-52;

 public:
  double time, size, first_at_bound = std::numeric_limits<double>::quiet_NaN();
  int64_t accepted = 0, rejected = 0, at_bound = 0, status, evaluations = 0;
  double h, next_time;  // of the step to try

  StepControl() : time(0), size(0), status(kDone) {}
  // From the root mean squares of the start and of its derivative, in units of the tolerance: Hairer's first guess.
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
  // bend: the root mean square of the derivative's change over the first guess.
  void choose_first(double bend) {
    const double d2 = bend / h0_, most = d1_ > d2 ? d1_ : d2;
    double h1 = most <= 1e-15 ? std::fmax(1e-6, h0_ * 1e-3) : std::pow(0.01 / most, 0.2);
    if (!std::isfinite(d2)) h1 = h0_ * 1e-3;
    size = std::fmax(std::fmin(100 * h0_, h1), 2 * shortest());  // next() ends at the last time
  }

  // Shorter steps do not move the time well.
  double shortest() const { return 10 * kEps * std::fmax(std::fabs(time), kEps * span_); }
  double sign() const { return end_ > time ? 1 : -1; }
  // Whether there is a step to try.
  bool next(int64_t max_steps, int64_t max_at_bound) {
    h = 0;
    if (status != kRunning) return false;
    if (at_bound >= max_at_bound && 2 * at_bound >= accepted) {
      status = kStiff;
    } else if (accepted + rejected >= max_steps) {
      status = kTooMany;
    } else if (size <= shortest()) {
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
      size = length / std::fmin(factor, kMax);  // kMax also where the factor is nan
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
    size = std::fabs(h) / (broken ? kMax : 2);
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

}  // namespace NPU_ISA
}  // namespace npu
