// Adaptive steps of a register of trajectories. Every lane has its own time, size and acceptance; a lane that has ended
// makes steps of size 0 until the last one has.
#pragma once

#include "ode/adaptive.h"

namespace npu {
namespace NPU_ISA {

template <typename T, typename Step>
class AdaptiveForward {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  // Shares of the bound of stability from which a step is at it; the second where a state goes to and fro at 0, which
  // keeps steps below the bound.
  static constexpr double kNear = 0.98, kNearAtZero = 0.5;

 public:
  template <typename... Tolerances>  // what an implicit step needs
  explicit AdaptiveForward(const OdeAdaptiveForward<T>& f, Tolerances... tolerances)
      : f_(f), step_(f.inputs, f.pair, tolerances...), u_(step_.count()), out_(step_.count()) {}

  void run(int64_t row, int lanes) {
    row_ = row;
    lanes_ = lanes;
    start();
    for (;;) {
      alignas(64) T h[W] = {};
      bool any = false;
      for (int l = 0; l < lanes_; ++l) {
        any |= control_[l].next(f_.max_steps, f_.max_at_bound);
        h[l] = T(control_[l].h);
      }
      if (!any) break;
      const Reg size = S::load(h);
      if constexpr (Step::kImplicit) step_.run(u_, h);
      else step_.run(u_, size, OdePair::kStages - 1);
      if (!judge(size)) continue;
      write(size);
      move();
    }
    finish();
  }

 private:
  int64_t features() const { return f_.inputs.features; }

  // The root mean square over the features, of every lane.
  double rms(const T* sums, int l) const { return std::sqrt(double(sums[l] / T(features()))); }
  Reg scale(Reg size) const { return S::fma(S::set1(T(f_.rtol)), size, S::set1(T(f_.atol))); }

  void start() {
    const int64_t count = step_.count();
    step_.units().pack(row_, lanes_);
    step_.units().load(f_.u0 + row_ * features(), features(), lanes_, u_);
    step_.begin(u_);
    Reg of_state = S::zero(), of_derivative = S::zero(), of_bend = S::zero();
    alignas(64) T d0[W], d1[W], d2[W], h[W] = {};
    for (int64_t d = 0; d < count; ++d) {
      const Reg unit = scale(S::abs(u_[d])), state = u_[d] / unit, derivative = step_.k(0)[d] / unit;
      of_state = S::fma(state, state, of_state);
      of_derivative = S::fma(derivative, derivative, of_derivative);
    }
    S::store(d0, of_state);
    S::store(d1, of_derivative);
    for (int l = 0; l < lanes_; ++l) {
      bool finite = true;
      for (int64_t d = 0; d < count; ++d) finite &= std::isfinite(step_.k(0)[d][l]);
      control_[l] = StepControl();
      control_[l].begin(f_.t[0], f_.t[f_.count - 1], rms(d0, l), rms(d1, l), finite);
      control_[l].evaluations = 2;
      h[l] = T(control_[l].first_guess());
      next_[l] = 1;
    }
    for (int64_t d = 0; d < count; ++d) out_[d] = S::fma(S::load(h), step_.k(0)[d], u_[d]);
    step_.units().rhs(out_, step_.k(1), step_.stage(1));
    for (int64_t d = 0; d < count; ++d) {
      const Reg bend = (step_.k(1)[d] - step_.k(0)[d]) / scale(S::abs(u_[d]));
      of_bend = S::fma(bend, bend, of_bend);
    }
    S::store(d2, of_bend);
    for (int l = 0; l < lanes_; ++l) {
      control_[l].choose_first(rms(d2, l));
      for (int64_t d = 0; d < count; ++d) f_.path[at(l, 0) + d] = u_[d][l];
    }
    if constexpr (Step::kImplicit) step_.linearise(u_);
  }
  // Where the state of lane l at time m goes.
  int64_t at(int l, int64_t m) const { return ((row_ + l) * f_.count + m) * features(); }

  // The least unit of the errors: 0 but in the lanes where a state of at most kOdeJump eps changes its sign.
  Reg min_unit() const {
    const Reg jump = S::set1(T(kOdeJump * double(f_.inputs.eps)));
    Reg least = S::zero();
    for (int64_t d = 0; d < step_.count(); ++d) {
      auto changes = S::zero() > S::zero();
      for (int i = 1; i < OdePair::kStages; ++i)
        changes = changes | ((step_.v(i)[d] < S::zero()) ^ (u_[d] < S::zero()));
      const auto near = (S::abs(u_[d]) <= jump) & (S::abs(step_.v(6)[d]) <= jump);
      least = S::select(near & changes, jump, least);
    }
    return least;
  }

  // Which lanes' steps are accepted; whether any is.
  bool judge(Reg h) {
    Reg errors = S::zero(), apart = S::zero(), bend = S::zero();
    const Reg least = min_unit(), *last = step_.v(6);
    for (int64_t d = 0; d < step_.count(); ++d) {
      Reg error = S::zero();
      for (int j = 0; j < OdePair::kStages; ++j)
        if (f_.pair.error(j) != 0) error = S::fma(S::set1(T(f_.pair.error(j))), step_.k(j)[d], error);
      const Reg before = S::abs(u_[d]), after = S::abs(last[d]);
      const Reg unit = scale(S::select(before > after, before, after));
      error = h * error / S::select(unit < least, least, unit);
      errors = S::fma(error, error, errors);
      const Reg away = last[d] - step_.v(5)[d], turn = step_.k(6)[d] - step_.k(5)[d];
      apart = S::fma(away, away, apart);
      bend = S::fma(turn, turn, bend);
    }
    alignas(64) T error[W], distance[W], change[W], at_zero[W];
    S::store(error, errors);
    S::store(distance, apart);
    S::store(change, bend);
    S::store(at_zero, least);
    bool any = false;
    for (int l = 0; l < W; ++l) good_[l] = T(0);
    for (int l = 0; l < lanes_; ++l) {
      StepControl& own = control_[l];
      if (own.status != kRunning) continue;
      if constexpr (Step::kImplicit) {
        own.evaluations += step_.evaluations(l);
        if (!step_.solved(l)) {
          own.refuse(step_.broken(l));
          continue;
        }
      } else {
        own.evaluations += OdePair::kStages - 1;
      }
      const double moved = rms(distance, l);
      const double share = at_zero[l] != T(0) ? kNearAtZero : kNear;
      const bool bound = moved > 0 && rms(change, l) * std::fabs(own.h) > share * f_.pair.stable() * moved;
      const bool good = own.judge(rms(error, l), bound);
      good_[l] = T(good);
      any |= good;
    }
    return any;
  }

  // The states at the times within the accepted steps.
  void write(Reg h) {
    bool polynomials = false;
    for (;;) {
      alignas(64) T x[W] = {}, within[W] = {};
      bool there[W] = {}, any = false;
      for (int l = 0; l < lanes_; ++l) {
        const StepControl& own = control_[l];
        if (good_[l] == T(0) || next_[l] == f_.count) continue;
        const double t = f_.t[next_[l]];
        there[l] = own.h > 0 ? t <= own.next_time : t >= own.next_time;
        if (!there[l]) continue;
        any = true;
        within[l] = T(t != own.next_time);
        x[l] = t == own.next_time ? T(2) : T((t - own.time) / own.h);
      }
      if (!any) return;
      if (!polynomials) step_.interpolant();
      polynomials = true;
      const Reg at_x = S::load(x), ends = S::set1(T(2));
      if constexpr (Step::kImplicit) step_.output(u_, h, at_x, within, out_);
      for (int64_t d = 0; d < step_.count(); ++d) {
        Reg sum = step_.q(3, d);
        for (int p = 2; p >= 0; --p) sum = S::fma(sum, at_x, step_.q(p, d));
        const Reg inside = Step::kImplicit ? out_[d] : S::fma(h, sum * at_x, u_[d]);
        out_[d] = S::select(at_x == ends, step_.v(6)[d], inside);
      }
      for (int l = 0; l < lanes_; ++l) {
        if (!there[l]) continue;
        for (int64_t d = 0; d < step_.count(); ++d) f_.path[at(l, next_[l]) + d] = out_[d][l];
        ++next_[l];
      }
    }
  }

  void move() {
    for (int l = 0; l < lanes_; ++l) {
      if (good_[l] == T(0)) continue;
      keep(l, control_[l].accepted - 1);
      control_[l].move();
      control_[l].evaluations += Step::kImplicit;  // where the next step is linearised
      keep_time(l);
    }
    const auto good = S::load(good_) > S::zero();
    for (int64_t d = 0; d < step_.count(); ++d) {
      u_[d] = S::select(good, step_.v(6)[d], u_[d]);
      step_.k(0)[d] = S::select(good, step_.k(6)[d], step_.k(0)[d]);
    }
    if constexpr (Step::kImplicit) step_.linearise(u_);
  }

  void keep_time(int l) {
    if (f_.saved == nullptr) return;
    OdeSaved<T>& saved = f_.saved[row_ + l];
    const int64_t n = control_[l].accepted;
    if (n > saved.times_room) {
      saved.times_room = 2 * n + 30;
      saved.times = static_cast<double*>(more_memory(saved.times, size_t(saved.times_room) * sizeof(double)));
    }
    saved.times[n - 1] = control_[l].time;
  }
  // The state of lane l before its step n, if it is one that is saved; of an implicit method with the step's
  // derivatives.
  void keep(int l, int64_t n) {
    if (f_.saved == nullptr || n % f_.every != 0) return;
    OdeSaved<T>& saved = f_.saved[row_ + l];
    const int64_t size = f_.pair.saved() * features(), first = n / f_.every * size;
    if (first + size > saved.states_room) {
      saved.states_room = 2 * first + 32 * size;
      saved.states = static_cast<T*>(more_memory(saved.states, size_t(saved.states_room) * sizeof(T)));
    }
    for (int64_t d = 0; d < features(); ++d) saved.states[first + d] = u_[d][l];
    for (int64_t i = 1; i < f_.pair.saved(); ++i)
      for (int64_t d = 0; d < features(); ++d) saved.states[first + i * features() + d] = step_.k(i - 1)[d][l];
  }

  void finish() {
    for (int l = 0; l < lanes_; ++l) {
      const StepControl& own = control_[l];
      keep(l, own.accepted);
      for (int64_t d = 0; d < features(); ++d) f_.last[(row_ + l) * features() + d] = u_[d][l];
      for (int64_t n = at(l, next_[l]); n < at(l, f_.count); ++n) f_.path[n] = std::numeric_limits<T>::quiet_NaN();
      int64_t* counts = f_.counts + 5 * (row_ + l);
      counts[0] = own.accepted;
      counts[1] = own.rejected;
      counts[2] = own.at_bound;
      counts[3] = own.status;
      counts[4] = own.evaluations;
      double* clock = f_.clock + 3 * (row_ + l);
      clock[0] = own.time;
      clock[1] = f_.t[f_.count - 1] > f_.t[0] ? own.size : -own.size;
      clock[2] = own.first_at_bound;
    }
  }

  const OdeAdaptiveForward<T>& f_;
  Step step_;
  Scratch<Reg> u_, out_;
  StepControl control_[W];
  int64_t next_[W], row_ = 0;
  alignas(64) T good_[W];
  int lanes_ = 0;
};

}  // namespace NPU_ISA
}  // namespace npu
