// The steps of an implicit pair, one whose stages depend on their own derivatives: of a register of trajectories.
//
//   v_i = w_i + h g k_i    w_i = u + h sum_{j < i} a_ij k_j    k_i = f(v_i)
//
// Newton's iteration with one matrix for all stages of a step, 1 - h g J(u), on the derivatives: k loses no digits
// where h is small, and is no f(v), which would multiply v's error by a stiff model's rates. So k_7 is the next step's
// k_1. npu_kernels/ode/_implicit.py has the formulas.
#pragma once

#include "ode/adaptive.h"

namespace npu {
namespace NPU_ISA {

// A matrix of every lane, as the product of two triangles: Gauss with partial pivots, each lane its own. A matrix that
// is singular gives solutions that are not finite.
template <typename T>
class LaneMatrix {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;

 public:
  explicit LaneMatrix(int64_t size) : size_(size), a_(size * size), inverse_(size), pivots_(size * W) {}

  Reg& at(int64_t row, int64_t column) { return a_[row * size_ + column]; }

  void factor() {
    swaps_ = false;
    for (int64_t c = 0; c < size_; ++c) {
      find_pivot(c);
      inverse_[c] = S::set1(T(1)) / at(c, c);
      for (int64_t r = c + 1; r < size_; ++r) {
        const Reg share = at(r, c) * inverse_[c];
        at(r, c) = share;
        for (int64_t j = c + 1; j < size_; ++j) at(r, j) = S::fma(-share, at(c, j), at(r, j));
      }
    }
  }

  void solve(Reg* x) {
    for (int64_t c = 0; swaps_ && c < size_; ++c)
      for (int l = 0; l < W; ++l) swap(x, c, pivots_[c * W + l], l);
    for (int64_t r = 1; r < size_; ++r)
      for (int64_t c = 0; c < r; ++c) x[r] = S::fma(-at(r, c), x[c], x[r]);
    for (int64_t r = size_ - 1; r >= 0; --r) {
      for (int64_t c = r + 1; c < size_; ++c) x[r] = S::fma(-at(r, c), x[c], x[r]);
      x[r] = x[r] * inverse_[r];
    }
  }

 private:
  void find_pivot(int64_t c) {
    Reg largest = S::abs(at(c, c)), found = S::set1(T(c));
    for (int64_t r = c + 1; r < size_; ++r) {
      const Reg value = S::abs(at(r, c));
      found = S::select(value > largest, S::set1(T(r)), found);
      largest = S::select(value > largest, value, largest);
    }
    alignas(64) T rows[W];
    S::store(rows, found);
    for (int l = 0; l < W; ++l) {
      const int64_t row = int64_t(rows[l]);
      pivots_[c * W + l] = row;
      if (row == c) continue;
      swaps_ = true;
      for (int64_t j = 0; j < size_; ++j) swap(a_ + j, c * size_, row * size_, l);
    }
  }
  static void swap(Reg* registers, int64_t a, int64_t b, int l) {
    const T kept = registers[a][l];
    registers[a][l] = registers[b][l];
    registers[b][l] = kept;
  }

  const int64_t size_;
  Scratch<Reg> a_, inverse_;
  Scratch<int64_t> pivots_;
  bool swaps_ = false;
};

template <typename T, typename Units>
class ImplicitStep : public PairStep<T, Units> {
  using Base = PairStep<T, Units>;
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  // Newton's iterations for a stage; what they must reach, in units of the tolerance (Hairer and Wanner, IV.8), and the
  // least rate of convergence that is assumed in a stage's first iteration.
  static constexpr int kIterations = 10;
  static constexpr double kMaxError = 0.03, kRounding = 10, kMinRate = 0.1;

 public:
  static constexpr bool kImplicit = true;
  static constexpr int kStages = Base::kStages, kPowers = Base::kPowers;
  using Base::advance, Base::count, Base::k, Base::pair, Base::q, Base::stage, Base::units, Base::v;

  ImplicitStep(const OdeInputs<T>& in, const OdePair& pair, double rtol, double atol)
      : Base(in, pair),
        rtol_(rtol),
        atol_(atol),
        bound_(std::fmax(kRounding * std::numeric_limits<T>::epsilon() / rtol, std::fmin(kMaxError, std::sqrt(rtol)))),
        jump_(kOdeJump * double(in.eps)),
        jacobian_(count() * count()),
        unit_(count()),
        w_(count()),
        derivative_(count()),
        change_(count()),
        matrix_(count()) {
    double nodes[kStages] = {};
    for (int i = 1; i < kStages; ++i) {
      nodes[i] = pair.diagonal();
      for (int j = 0; j < i; ++j) nodes[i] += pair.a(i - 1, j);
      for (int j = 0; j < i; ++j) {  // the polynomial through the derivatives before, at this stage's time
        guess_[i][j] = 1;
        for (int m = 0; m < i; ++m)
          if (m != j) guess_[i][j] *= (nodes[i] - nodes[m]) / (nodes[j] - nodes[m]);
      }
    }
    middle_ = nodes[4];
  }

  // The Jacobian at a state, whose derivative is not wanted.
  void linearise(const Reg* u) {
    units().rhs(u, change_, stage(0));
    units().jacobian(saved_stage(), jacobian_);
  }
  // Steps of size h from u, where `linearise` was, in the lanes where h is not 0.
  void run(const Reg* u, const T* h) {
    const Reg size = S::load(h), scaled = diagonal() * size;
    for (int64_t d = 0; d < count(); ++d) unit_[d] = S::fma(S::set1(T(rtol_)), S::abs(u[d]), S::set1(T(atol_)));
    for (int64_t r = 0; r < count(); ++r)
      for (int64_t c = 0; c < count(); ++c) matrix_.at(r, c) = S::set1(T(r == c)) - scaled * jacobian_[r * count() + c];
    matrix_.factor();
    for (int l = 0; l < W; ++l) lanes_[l] = {h[l] != T(0), false, 1, 0, 0};
    for (int i = 1; i < kStages; ++i) {
      advance(i - 1, u, size, w_);
      for (int64_t d = 0; d < count(); ++d) {
        Reg sum = S::zero();
        for (int j = 0; j < i; ++j) sum = S::fma(S::set1(T(guess_[i][j])), k(j)[d], sum);
        k(i)[d] = sum;
      }
      solve(k(i), v(i), stage(i), scaled);
      for (int64_t d = 0; d < count(); ++d) v(i)[d] = S::fma(scaled, k(i)[d], w_[d]);
    }
  }
  // Whether the step of lane l has a solution, and a step without one is not finite; how many derivatives it took.
  bool solved(int l) const { return lanes_[l].runs; }
  bool broken(int l) const { return lanes_[l].broken; }
  int64_t evaluations(int l) const { return lanes_[l].evaluations; }

  // The end of a step whose derivatives are known, bitwise.
  void end(const Reg* u, Reg h, Reg* to) { place(kStages - 1, u, h, to); }
  // The state of stage i, whose derivatives are known.
  const Reg* state(int i, const Reg* u, Reg h) {
    place(i, u, h, v(i));
    return v(i);
  }
  // Solves (1 - h g J(v))' x = dk; x overwrites dk. Leaves in stage(0) what `vjp` needs of v.
  void solve_transposed(const Reg* v, Reg h, Reg* dk) {
    const Reg scaled = diagonal() * h;
    units().rhs(v, change_, stage(0));
    units().jacobian(saved_stage(), jacobian_);
    for (int64_t r = 0; r < count(); ++r)
      for (int64_t c = 0; c < count(); ++c) matrix_.at(r, c) = S::set1(T(r == c)) - scaled * jacobian_[c * count() + r];
    matrix_.factor();
    matrix_.solve(dk);
  }
  Stage<T, const T*> saved_stage() { return {stage(0).at, Units::kScratchStride}; }

  // The state at the share x of a step of size h, in the lanes of `open`: a stage of its own, so that what a stiff
  // model binds together it binds there, too. Its derivatives before are the interpolant's, and - g k_1.
  void output(const Reg* u, Reg h, Reg x, T* open, Reg* to) {
    // The guess is a parabola through three derivatives; a derivative that Newton's iteration does not find stays where
    // it got to.
    const Reg off = x - S::set1(T(middle_)), rest = x - S::set1(T(1));
    const Reg first = off * rest / S::set1(T(middle_)), last = x * off / S::set1(T(1 - middle_));
    const Reg between = x * rest / S::set1(T(middle_ * (middle_ - 1)));
    for (int64_t d = 0; d < count(); ++d) {
      Reg sum = q(kPowers - 1, d);
      for (int p = kPowers - 2; p >= 0; --p) sum = S::fma(sum, x, q(p, d));
      w_[d] = S::fma(h, S::fma(sum, x, -diagonal() * k(0)[d]), u[d]);
      derivative_[d] = S::fma(first, k(0)[d], S::fma(between, k(4)[d], last * k(kStages - 1)[d]));
    }
    for (int l = 0; l < W; ++l) lanes_[l].runs = open[l] != T(0);
    solve(derivative_, to, stage(1), diagonal() * h);
    for (int64_t d = 0; d < count(); ++d) to[d] = S::fma(diagonal() * h, derivative_[d], w_[d]);
  }

 private:
  Reg diagonal() const { return S::set1(T(pair().diagonal())); }
  struct Lane {
    bool runs, broken;    // runs: it makes a step, all of whose stages have had solutions
    double rate, before;  // of Newton's changes: the last ratio of two, the size of the last one
    int64_t evaluations;
  };

  void place(int i, const Reg* u, Reg h, Reg* to) {
    const Reg scaled = diagonal() * h;
    advance(i - 1, u, h, to);
    for (int64_t d = 0; d < count(); ++d) to[d] = S::fma(scaled, k(i)[d], to[d]);
  }
  // The derivative of a stage of the state w + h g k, from its guess on, in the lanes that run. v: for its states.
  void solve(Reg* derivative, Reg* v, const Stage<T, T*>& stage, Reg scaled) {
    alignas(64) T open[W] = {};
    bool any = false;
    for (int l = 0; l < W; ++l) {
      open[l] = T(lanes_[l].runs);
      any |= lanes_[l].runs;
    }
    for (int iteration = 0; any; ++iteration) {
      const auto is_open = S::load(open) > S::zero();
      for (int64_t d = 0; d < count(); ++d) v[d] = S::fma(scaled, derivative[d], w_[d]);
      units().rhs(v, change_, stage);
      for (int64_t d = 0; d < count(); ++d) change_[d] = change_[d] - derivative[d];
      matrix_.solve(change_);
      Reg sum = S::zero(), farthest = S::zero();
      for (int64_t d = 0; d < count(); ++d) {
        const Reg moved = S::abs(scaled * change_[d]), size = moved / unit_[d];
        sum = S::fma(size, size, sum);
        farthest = S::select(moved > farthest, moved, farthest);
        derivative[d] = S::select(is_open, derivative[d] + change_[d], derivative[d]);
      }
      alignas(64) T sums[W], farthests[W];
      S::store(sums, sum);
      S::store(farthests, farthest);
      any = false;
      for (int l = 0; l < W; ++l) {
        if (open[l] == T(0)) continue;
        const bool small = farthests[l] <= T(jump_);
        const bool goes_on = judge(lanes_[l], std::sqrt(double(sums[l] / T(count()))), small, iteration);
        open[l] = T(goes_on);
        any |= goes_on;
      }
    }
  }
  // Whether a lane needs another change after one of this size. small: as that of a derivative that jumps.
  bool judge(Lane& lane, double size, bool small, int iteration) {
    ++lane.evaluations;
    lane.rate = iteration > 0 ? size / lane.before : std::fmax(lane.rate, kMinRate);
    lane.before = size;
    const bool grows = iteration > 0 && lane.rate >= 1, ends = grows || iteration + 1 == kIterations;
    if (size == 0 || lane.rate * size <= bound_ * (1 - lane.rate)) return false;
    if (grows && size <= bound_) return false;  // that is rounding
    lane.broken = !std::isfinite(size);
    if (ends && small && !lane.broken) return false;
    lane.runs = !(lane.broken || ends);
    return lane.runs;
  }

  const double rtol_, atol_, bound_, jump_;
  double guess_[kStages][kStages] = {}, middle_;  // middle_: the time of k_5
  Scratch<Reg> jacobian_, unit_, w_, derivative_, change_;
  LaneMatrix<T> matrix_;
  Lane lanes_[W];
};

}  // namespace NPU_ISA
}  // namespace npu
