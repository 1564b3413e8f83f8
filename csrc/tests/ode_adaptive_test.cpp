// The adaptive steps of every instruction set. In float64 the steps are those of a plain long-double control. The
// states are those of a long-double loop over the kernel's own accepted steps, the gradients central differences of
// that loop. Bitwise identical results from one thread as from many, and from states that were all saved as from those
// computed again. The implicit steps: these bits, too, and the explicit ones' path and gradients to the tolerance
// (tests/ode/test_ode_implicit.py has the rest).
#include <cstdlib>

#include "layers.h"
#include "ode_cases.h"
#include "workers.h"

namespace {

constexpr int kStages = npu::OdePair::kStages, kPowers = npu::OdePair::kPowers;

// Dormand and Prince's pair with Shampine's interpolant, as in npu_kernels/ode/_methods.py.
// clang-format off
const double kNumbers[npu::OdePair::kNumbers] = {
    1. / 5,
    3. / 40, 9. / 40,
    44. / 45, -56. / 15, 32. / 9,
    19372. / 6561, -25360. / 2187, 64448. / 6561, -212. / 729,
    9017. / 3168, -355. / 33, 46732. / 5247, 49. / 176, -5103. / 18656,
    35. / 384, 0, 500. / 1113, 125. / 192, -2187. / 6784, 11. / 84,
    71. / 57600, 0, -71. / 16695, 71. / 1920, -17253. / 339200, 22. / 525, -1. / 40,
    1, -8048581381. / 2820520608, 8663915743. / 2820520608, -12715105075. / 11282082432,
    0, 0, 0, 0,
    0, 131558114200. / 32700410799, -68118460800. / 10900136933, 87487479700. / 32700410799,
    0, -1754552775. / 470086768, 14199869525. / 1410260304, -10690763975. / 1880347072,
    0, 127303824393. / 49829197408, -318862633887. / 49829197408, 701980252875. / 199316789632,
    0, -282668133. / 205662961, 2019193451. / 616988883, -1453857185. / 822651844,
    0, 40617522. / 29380423, -110615467. / 29380423, 69997945. / 29380423,
    3.3065, 0};
// Kvaerno's.
const double kImplicitNumbers[npu::OdePair::kNumbers] = {
    0.26,
    0.13, 0.84033320996790809,
    0.22371961478320505, 0.47675532319799699, -0.06470895363112615,
    0.16648564323248321, 0.10450018841591720, 0.03631482272098715, -0.13090704451073998,
    0.13855640231268224, 0.0, -0.04245337201752043, 0.02446657898003141, 0.61943039072480676,
    0.13659751177640291, 0.0, -0.05496908796538376, -0.04118626728321046, 0.62993304899016403, 0.06962479448202728,
    -0.00195889053627933, 0.0, -0.01251571594786333, -0.06565284626324187, 0.01050265826535727, -0.19037520551797272,
    0.26,
    2.0984660796160095, -3.447857536706677, 2.2408189807527616, -0.4948300118856914,
    0.0, 0.0, 0.0, 0.0,
    -0.30400199698536806, 1.9630517255199214, -2.6385916988540266, 0.9245728823540895,
    1.0506652946902324, -3.4969474755007046, 3.3838182441257945, -0.9787223305985332,
    -1.8062302273268451, 6.679332395296094, -5.679998126984172, 1.4368290080050874,
    -0.9364089730173661, 1.2455037326741685, -0.15116050509919782, -0.08830946007557727,
    0.8975098230233373, -2.9430828412828025, 2.84511310605884, -0.7995400877993749,
    1e300, 0.26};
// clang-format on
const npu::OdePair kPair{kNumbers}, kImplicit{kImplicitNumbers};

struct Shape : OdeShape {
  bool falling;  // times
  int64_t max_steps;
};

// An accepted step: its state and derivatives.
struct Step {
  long double begin, size;
  Long u;
  std::vector<Long> k;

  // The interpolant.
  Long at(long double time) const {
    const long double x = (time - begin) / size;
    Long found = u;
    for (int j = 0; j < kStages; ++j)
      for (int p = kPowers - 1; p >= 0; --p)
        for (size_t i = 0; i < u.size(); ++i) found[i] += size * k[size_t(j)][i] * kPair.dense(j, p) * powl(x, p + 1);
    return found;
  }
};

struct Control {
  std::vector<long double> times;  // ends of the accepted steps
  int64_t rejected = 0, at_bound = 0;
};

struct Problem : OdeModel {
  using OdeModel::OdeModel;

  // The stages of a step: k of all, states of the last two.
  Step stages(const Long& u, long double begin, long double size, Long* before, Long* last) const {
    Step step{begin, size, u, {rhs(u)}};
    for (int row = 0; row + 1 < kStages; ++row) {
      *before = *last;
      *last = u;
      for (int j = 0; j <= row; ++j)
        for (int64_t i = 0; i < d; ++i) (*last)[i] += size * kPair.a(row, j) * step.k[size_t(j)][i];
      step.k.push_back(rhs(*last));
    }
    return step;
  }
  std::vector<Step> replay(Long u, double begin, const std::vector<double>& ends) const {
    std::vector<Step> steps;
    Long before;
    for (double end : ends) {
      Long last;
      steps.push_back(stages(u, begin, (long double)end - begin, &before, &last));
      u = last;
      begin = end;
    }
    return steps;
  }
  // The steps that Hairer's control takes (npu_kernels/ode/_adaptive.py).
  Control control(Long u, const std::vector<double>& t, long double tolerance, int64_t max_steps) const {
    const auto rms = [&](const auto& of) {
      long double sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += of(i) * of(i);
      return sqrtl(sum / d);
    };
    const long double span = fabsl(t.back() - t.front()), sign = t.back() > t.front() ? 1 : -1;
    const Long k = rhs(u);
    const auto unit = [&](int64_t i) { return tolerance + tolerance * fabsl(u[i]); };
    const long double d0 = rms([&](int64_t i) { return u[i] / unit(i); });
    const long double d1 = rms([&](int64_t i) { return k[i] / unit(i); });
    const long double h0 = std::min(d0 < 1e-5L || d1 < 1e-5L ? 1e-6L : 0.01L * d0 / d1, span);
    Long away = u;
    for (int64_t i = 0; i < d; ++i) away[i] += sign * h0 * k[i];
    const Long bent = rhs(away);
    const long double d2 = rms([&](int64_t i) { return (bent[i] - k[i]) / unit(i); }) / h0, most = std::max(d1, d2);
    const long double h1 = most <= 1e-15L ? std::max(1e-6L, h0 * 1e-3L) : powl(0.01L / most, 0.2L);
    long double size = std::min({100 * h0, h1, span}), time = t.front(), before_error = 1e-4L;
    bool shrunk = false;
    Control found;
    while (int64_t(found.times.size()) + found.rejected < max_steps) {
      const bool end = 1.01L * size >= fabsl(t.back() - time);
      const long double h = (end ? t.back() : time + sign * size) - time;
      Long before, last;
      const Step step = stages(u, time, h, &before, &last);
      const long double error = rms([&](int64_t i) {
        long double sum = 0;
        for (int j = 0; j < kStages; ++j) sum += kPair.error(j) * step.k[size_t(j)][i];
        return h * sum / (tolerance + tolerance * std::max(fabsl(u[i]), fabsl(last[i])));
      });
      const long double factor = powl(error, 0.17L) / 0.9L;
      if (!(error <= 1)) {
        ++found.rejected;
        size = fabsl(h) / std::min(factor, 5.0L);
        shrunk = true;
        continue;
      }
      const long double apart = rms([&](int64_t i) { return last[i] - before[i]; });
      const long double turn = rms([&](int64_t i) { return step.k[6][i] - step.k[5][i]; });
      found.at_bound += apart > 0 && turn * fabsl(h) > 0.98L * kPair.stable() * apart;
      size = fabsl(h) / std::min(std::max(factor / powl(before_error, 0.04L), 0.1L), 5.0L);
      if (shrunk) size = std::min(size, fabsl(h));
      shrunk = false;
      before_error = std::max(error, 1e-4L);
      time = end ? t.back() : time + h;
      found.times.push_back(time);
      u = last;
      if (end) break;
    }
    return found;
  }
};

constexpr double kTolerance = 1e-5;
constexpr int64_t kCounts = 5;  // of a trajectory

template <typename T>
struct Case : OdeWeights<T> {
  Shape n;
  std::vector<double> t;
  std::vector<T> grad_path;

  explicit Case(const Shape& shape) : OdeWeights<T>(shape), n(shape) {
    // Short: the differences must not meet the jump of the right side at 0. Some times are in the same step.
    const double end = (n.falling ? -0.8 : 0.8) / double(n.hidden);
    for (double share : {0.0, 0.02, 0.03, 0.4, 0.55, 1.0}) t.push_back(1 + share * end);
    this->fill(grad_path, n.rows() * int64_t(t.size()) * n.features, [](double v) { return v; });
  }
};

template <typename T>
struct Results {
  std::vector<T> path, last, grad_u0, grad_wr, grad_wi, grad_gate, grad_a;
  std::vector<double> times, clock, grad_t;
  std::vector<int64_t> counts, steps_at;

  Results(const Case<T>& c, const npu::Parallel& parallel, int64_t every, const npu::OdePair& pair = kPair) {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    const auto& kernels = npu::kernels<T>();
    const int64_t rows = c.n.rows(), d = c.n.features, count = int64_t(c.t.size());
    path.assign(c.grad_path.size(), nan);
    last.assign(c.u0.size(), nan);
    counts.assign(size_t(kCounts * rows), -1);
    clock.assign(size_t(3 * rows), nan);
    std::vector<npu::OdeSaved<T>> saved(size_t(rows), npu::OdeSaved<T>{});
    kernels.ode_adaptive_forward(
        {c.inputs(), pair, c.u0.data(), c.t.data(), count, kTolerance, kTolerance, c.n.max_steps, c.n.max_steps, every,
         path.data(), last.data(), counts.data(), clock.data(), saved.data()},
        parallel);
    std::vector<T> states;
    std::vector<int64_t> states_at{0};
    steps_at = {0};
    for (int64_t row = 0; row < rows; ++row) {
      const npu::OdeSaved<T>& own = saved[size_t(row)];
      const int64_t steps = counts[size_t(kCounts * row)];
      times.insert(times.end(), own.times, own.times + steps);
      states.insert(states.end(), own.states, own.states + (steps / every + 1) * d * pair.saved());
      steps_at.push_back(int64_t(times.size()));
      states_at.push_back(int64_t(states.size()) / (d * pair.saved()));
      std::free(own.times);
      std::free(own.states);
    }
    grad_u0.assign(c.u0.size(), nan);
    grad_wr.assign(c.wr.size(), nan);
    grad_wi = grad_a = grad_wr;
    grad_gate.assign(c.gate.size(), nan);
    grad_t.assign(size_t(rows * count), nan);
    npu::OdeBackward<T> gradients{c.inputs(),
                                  nullptr,
                                  nullptr,
                                  nullptr,
                                  nullptr,
                                  false,
                                  grad_u0.data(),
                                  grad_wr.data(),
                                  c.n.complex ? grad_wi.data() : nullptr,
                                  c.n.gated ? grad_gate.data() : nullptr,
                                  grad_a.data()};
    kernels.ode_adaptive_backward(
        {gradients, pair, kTolerance, kTolerance, path.data(), c.grad_path.data(), c.t.data(), count, every,
         times.data(), states.data(), steps_at.data(), states_at.data(), grad_t.data()},
        parallel);
  }

  std::vector<double> ends(int64_t row) const {
    return {times.begin() + steps_at[size_t(row)], times.begin() + steps_at[size_t(row) + 1]};
  }
  bool same_as(const Results& o) const {
    return same_bits(path, o.path) && same_bits(last, o.last) && same_bits(times, o.times) &&
           same_bits(clock, o.clock) && same_bits(counts, o.counts) && same_bits(grad_t, o.grad_t) &&
           same_bits(grad_u0, o.grad_u0) && same_bits(grad_wr, o.grad_wr) && same_bits(grad_wi, o.grad_wi) &&
           same_bits(grad_gate, o.grad_gate) && same_bits(grad_a, o.grad_a);
  }
};

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

int64_t rejected = 0, unfinished = 0;  // of all cases: what has no example is not tested

// The steps of the control; float32's rounding may move them.
template <typename T>
void compare_steps(const Case<T>& c, const Results<T>& got) {
  for (int64_t row = 0; row < c.n.rows(); ++row) {
    const Control want = Problem(c, row / c.n.starts).control(c.start(row), c.t, kTolerance, c.n.max_steps);
    const int64_t* counts = got.counts.data() + kCounts * row;
    const std::vector<double> ends = got.ends(row);
    const bool done = !ends.empty() && ends.back() == c.t.back();
    expect(counts[0] == int64_t(ends.size()), "accepted steps");
    expect(counts[3] == (done ? 0 : 1), "how it ended");
    expect(got.clock[size_t(3 * row)] == (ends.empty() ? c.t.front() : ends.back()), "time reached");
    if (sizeof(T) == sizeof(float)) continue;
    expect(counts[0] == int64_t(want.times.size()), "accepted steps of the control");
    expect(counts[1] == want.rejected, "rejected steps");
    expect(counts[2] == want.at_bound, "steps at the bound of stability");
    expect(std::isnan(got.clock[size_t(3 * row + 2)]) == (want.at_bound == 0), "time at that bound");
    compare("times", ends.data(), want.times, 1e-9L);
    rejected += want.rejected;
    unfinished += !done;
  }
}

// The states at the times that were reached, and their sum with a gradient.
struct Path {
  Long states;
  long double loss = 0;
};

template <typename T>
Path path_of(const Case<T>& c, const Problem& p, int64_t row, const Long& u0, const std::vector<double>& ends) {
  const std::vector<Step> steps = p.replay(u0, c.t[0], ends);
  const double sign = c.n.falling ? -1 : 1;
  Path found;
  size_t n = 0;
  for (size_t m = 0; m < c.t.size(); ++m) {
    while (m > 0 && n < ends.size() && sign * ends[n] < sign * c.t[m]) ++n;
    if (m > 0 && n == ends.size()) break;
    const Long state = m == 0 ? u0 : steps[n].at(c.t[m]);
    for (int64_t i = 0; i < c.n.features; ++i)
      found.loss += state[i] * c.grad_path[size_t((row * int64_t(c.t.size()) + int64_t(m)) * c.n.features + i)];
    found.states.insert(found.states.end(), state.begin(), state.end());
  }
  return found;
}

// The gradients of a trajectory's times, the steps fixed.
template <typename T>
Long of_times(const Case<T>& c, const std::vector<Step>& steps, int64_t row, const std::vector<double>& ends) {
  Long found(c.t.size());
  const double sign = c.n.falling ? -1 : 1;
  size_t n = 0;
  for (size_t m = 1; m < c.t.size(); ++m) {
    while (n < ends.size() && sign * ends[n] < sign * c.t[m]) ++n;
    if (n == ends.size()) break;
    long double time = c.t[m];
    found[m] = derivative(time, [&] {
      const Long state = steps[n].at(time);
      long double sum = 0;
      for (int64_t i = 0; i < c.n.features; ++i)
        sum += state[i] * c.grad_path[size_t((row * int64_t(c.t.size()) + int64_t(m)) * c.n.features + i)];
      return sum;
    });
  }
  return found;
}

template <typename T>
void compare_all(const Case<T>& c, const Results<T>& got) {
  compare_steps(c, got);
  const int64_t d = c.n.features, count = int64_t(c.t.size());
  const long double bound = 100 * std::numeric_limits<T>::epsilon() * sqrtl(30.0L + c.n.starts);
  const long double of_differences = std::max(bound, 1e-9L);
  for (int64_t k = 0; k < c.n.models; ++k) {
    Problem p(c, k);
    for (int64_t b = 0; b < c.n.starts; ++b) {
      const int64_t row = k * c.n.starts + b;
      Long u0 = c.start(row), grad;
      const std::vector<double> ends = got.ends(row);
      const Path path = path_of(c, p, row, u0, ends);
      const T* own = got.path.data() + row * count * d;
      compare("path", own, path.states, bound);
      for (int64_t i = int64_t(path.states.size()); i < count * d; ++i) expect(std::isnan(own[i]), "time not reached");
      for (long double& variable : u0)
        grad.push_back(derivative(variable, [&] { return path_of(c, p, row, u0, ends).loss; }));
      compare("grad_u0", got.grad_u0.data() + row * d, grad, of_differences);
      const Long times = of_times(c, p.replay(u0, c.t[0], ends), row, ends);
      compare("grad_t", got.grad_t.data() + row * count, times, of_differences);
    }
    const auto gradient = [&](const char* name, const std::vector<T>& found, Long& variables) {
      Long want;
      for (long double& variable : variables)
        want.push_back(derivative(variable, [&] {
          long double sum = 0;
          for (int64_t row = k * c.n.starts; row < (k + 1) * c.n.starts; ++row)
            sum += path_of(c, p, row, c.start(row), got.ends(row)).loss;
          return sum;
        }));
      compare(name, found.data() + k * int64_t(variables.size()), want, of_differences);
    };
    gradient("grad_weight_re", got.grad_wr, p.wr);
    if (c.n.complex) gradient("grad_weight_im", got.grad_wi, p.wi);
    if (c.n.gated) gradient("grad_gate", got.grad_gate, p.gate);
    gradient("grad_weight", got.grad_a, p.a);
  }
}

template <typename T>
void check(const Shape& n) {
  const Case<T> c(n);
  on_each_isa([&] {
    const Results<T> got(c, workers(1), 1);
    expect(got.same_as(Results<T>(c, workers(3), 1)), "bitwise identical results from three threads");
    expect(got.same_as(Results<T>(c, workers(1), 3)), "bitwise identical results from every third state");
    compare_all(c, got);
    const Results<T> implicit(c, workers(1), 1, kImplicit);
    expect(implicit.same_as(Results<T>(c, workers(3), 1, kImplicit)),
           "bitwise identical results from three threads, implicit");
    expect(implicit.same_as(Results<T>(c, workers(1), 3, kImplicit)),
           "bitwise identical results from every third state, implicit");
    if (n.max_steps < 10) return;  // neither has reached its end
    const auto near = [](const char* name, const std::vector<T>& ours, const std::vector<T>& other) {
      compare(name, ours.data(), Long(other.begin(), other.end()), 5e-3L);
    };
    near("implicit path", implicit.path, got.path);
    near("implicit grad_u0", implicit.grad_u0, got.grad_u0);
    near("implicit grad_weight_re", implicit.grad_wr, got.grad_wr);
    if (n.complex) near("implicit grad_weight_im", implicit.grad_wi, got.grad_wi);
    if (n.gated) near("implicit grad_gate", implicit.grad_gate, got.grad_gate);
    near("implicit grad_weight", implicit.grad_a, got.grad_a);
  });
}

}  // namespace

int main(int count, char** names) {
  if (!read_arguments(count, names)) return 77;
  const int64_t sizes[][5] = {{1, 1, 3, 4, 99}, {2, 3, 2, 3, 99}, {1, 21, 2, 2, 99},
                              {5, 2, 1, 2, 99}, {2, 9, 2, 2, 3},  {1, 1, 6, 9, 99}};
  const bool limited = limit < std::numeric_limits<int64_t>::max();
  for (const auto& size : sizes) {
    for (int bits : {0, 5, 10, 15}) {  // every option with and without
      if (limited && bits != 10) continue;
      const Shape n{{size[0], size[1], size[2], size[3], (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0},
                    (bits & 8) != 0,
                    size[4]};
      const int before = failures;
      check<float>(n);
      check<double>(n);
      if (failures > before)
        std::printf("  at K %ld B %ld D %ld h %ld complex %d gated %d clip %d falling %d\n", long(n.models),
                    long(n.starts), long(n.features), long(n.hidden), n.complex, n.gated, n.clip, n.falling);
    }
  }
  expect(limited || (rejected > 0 && unfinished > 0), "a rejected step and a trajectory that does not end");
  return report();
}
