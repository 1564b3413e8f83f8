// The ODE solver of every instruction set against a long-double loop, its gradients against central differences of that
// loop; bitwise identical results from one thread as from many, and from stages that were saved as from those computed
// again.
#include "layers.h"
#include "ode_cases.h"
#include "workers.h"

namespace {

struct Shape : OdeShape {
  int64_t steps;
  bool derivatives, runge_kutta;
};

const std::vector<double> kEuler = {1};
const std::vector<double> kRungeKutta = {1. / 3, -1. / 3, 1, 1, -1, 1, 1. / 8, 3. / 8, 3. / 8, 1. / 8};
constexpr double kDt = 0.01;

template <typename T>
struct Case : OdeWeights<T> {
  Shape n;
  std::vector<T> grad_trajectory, grad_derivatives;

  explicit Case(const Shape& shape) : OdeWeights<T>(shape), n(shape) {
    const int64_t count = n.rows() * (n.steps + 1) * n.features;
    this->fill(grad_trajectory, count, [](double v) { return v; });
    this->fill(grad_derivatives, count, [](double v) { return v; });
  }

  const std::vector<double>& tableau() const { return n.runge_kutta ? kRungeKutta : kEuler; }
  npu::OdeInputs<T> inputs() const {
    npu::OdeInputs<T> found = OdeWeights<T>::inputs();
    found.steps = n.steps;
    found.stages = n.runge_kutta ? 4 : 1;
    found.tableau = tableau().data();
    found.dt = kDt;
    found.last_stage = n.derivatives;
    return found;
  }
};

// One model's loop in long double.
struct Problem : OdeModel {
  using OdeModel::OdeModel;

  // All states, and all derivatives.
  void run(Long u, int64_t steps, const std::vector<double>& tableau, Long* states, Long* derivatives) const {
    states->clear();
    derivatives->clear();
    for (int64_t n = 0;; ++n) {
      states->insert(states->end(), u.begin(), u.end());
      std::vector<Long> k = {rhs(u)};
      derivatives->insert(derivatives->end(), k[0].begin(), k[0].end());
      if (n == steps) return;
      size_t at = 0;
      Long v;
      while (at < tableau.size()) {
        v = u;
        for (size_t j = 0; j < k.size(); ++j)
          for (int64_t i = 0; i < d; ++i) v[i] += kDt * tableau[at + j] * k[j][i];
        at += k.size();
        if (at < tableau.size()) k.push_back(rhs(v));
      }
      u = v;
    }
  }
};

template <typename T>
struct Results {
  std::vector<T> trajectory, derivatives, grad_u0, grad_wr, grad_wi, grad_gate, grad_a;

  Results(const Case<T>& c, const npu::Parallel& parallel, bool keep) {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    const auto inputs = c.inputs();
    const auto shape = inputs.stages_shape();
    std::vector<T> stages(keep ? shape[0] * shape[1] * shape[2] * shape[3] : 0, nan);
    trajectory.assign(c.grad_trajectory.size(), nan);
    derivatives = trajectory;
    grad_u0.assign(c.u0.size(), nan);
    grad_wr.assign(c.wr.size(), nan);
    grad_wi = grad_a = grad_wr;
    grad_gate.assign(c.gate.size(), nan);
    const auto& kernels = npu::kernels<T>();
    kernels.ode_forward({inputs, c.u0.data(), trajectory.data(), c.n.derivatives ? derivatives.data() : nullptr,
                         keep ? stages.data() : nullptr},
                        parallel);
    kernels.ode_backward(
        {inputs, c.grad_trajectory.data(), c.n.derivatives ? c.grad_derivatives.data() : nullptr, trajectory.data(),
         keep ? stages.data() : nullptr, false, grad_u0.data(), grad_wr.data(), c.n.complex ? grad_wi.data() : nullptr,
         c.n.gated ? grad_gate.data() : nullptr, grad_a.data()},
        parallel);
  }

  bool same_as(const Results& o) const {
    return same_bits(trajectory, o.trajectory) && same_bits(derivatives, o.derivatives) &&
           same_bits(grad_u0, o.grad_u0) && same_bits(grad_wr, o.grad_wr) && same_bits(grad_wi, o.grad_wi) &&
           same_bits(grad_gate, o.grad_gate) && same_bits(grad_a, o.grad_a);
  }
};

template <typename T>
std::vector<Expected<T, Results<T>>> expected(const Case<T>& c) {
  using R = Results<T>;
  const Shape& n = c.n;
  std::vector<Expected<T, Results<T>>> all;
  const int64_t d = n.features, matrix = n.hidden * d, path = (n.steps + 1) * d;
  const long double bound = 100 * std::numeric_limits<T>::epsilon() * sqrtl(1 + n.steps + n.starts);
  const long double of_differences = std::max(bound, 1e-9L);
  for (int64_t k = 0; k < n.models; ++k) {
    Problem p(c, k);
    Long states, derivatives;
    const auto row_loss = [&](int64_t b, const Long& u0) {
      p.run(u0, n.steps, c.tableau(), &states, &derivatives);
      long double sum = 0;
      for (int64_t i = 0; i < path; ++i) {
        sum += states[i] * c.grad_trajectory[(k * n.starts + b) * path + i];
        if (n.derivatives) sum += derivatives[i] * c.grad_derivatives[(k * n.starts + b) * path + i];
      }
      return sum;
    };
    const auto model_loss = [&] {
      long double sum = 0;
      for (int64_t b = 0; b < n.starts; ++b) sum += row_loss(b, c.start(k * n.starts + b));
      return sum;
    };
    const auto gradient = [&](Long& variables) {
      Long found;
      for (long double& variable : variables) found.push_back(derivative(variable, model_loss));
      return found;
    };
    for (int64_t b = 0; b < n.starts; ++b) {
      const int64_t row = k * n.starts + b;
      Long u0 = c.start(row), grad;
      row_loss(b, u0);
      all.push_back({"trajectory", &R::trajectory, row * path, states, bound});
      if (n.derivatives) all.push_back({"derivatives", &R::derivatives, row * path, derivatives, bound});
      for (int64_t i = 0; i < d; ++i) grad.push_back(derivative(u0[i], [&] { return row_loss(b, u0); }));
      all.push_back({"grad_u0", &R::grad_u0, row * d, grad, of_differences});
    }
    const auto add = [&](const char* name, std::vector<T> R::* part, int64_t at, Long& variables) {
      all.push_back({name, part, at, gradient(variables), of_differences});
    };
    add("grad_weight_re", &R::grad_wr, k * matrix, p.wr);
    if (n.complex) add("grad_weight_im", &R::grad_wi, k * matrix, p.wi);
    if (n.gated) add("grad_gate", &R::grad_gate, k * d, p.gate);
    add("grad_weight", &R::grad_a, k * matrix, p.a);
  }
  return all;
}

template <typename T>
void check(const Shape& n) {
  const Case<T> c(n);
  const std::vector<Expected<T, Results<T>>> all = expected(c);
  on_each_isa([&] {
    const Results<T> got(c, workers(1), true);
    if (!got.same_as(Results<T>(c, workers(3), true)))
      std::printf("FAILED: other bits from three threads\n"), ++failures;
    if (!got.same_as(Results<T>(c, workers(1), false))) std::printf("FAILED: other bits, not saved\n"), ++failures;
    for (const Expected<T, Results<T>>& e : all) compare(e.name, (got.*e.part).data() + e.at, e.values, e.bound);
  });
}

}  // namespace

int main(int count, char** names) {
  if (!read_arguments(count, names)) return 77;
  const int64_t sizes[][5] = {{1, 1, 3, 9, 6},  {1, 1, 1, 1, 2}, {1, 1, 5, 17, 3}, {1, 1, 18, 3, 2}, {3, 1, 3, 5, 4},
                              {19, 1, 2, 4, 3}, {2, 3, 4, 4, 3}, {2, 9, 3, 2, 3},  {1, 21, 5, 3, 2}, {1, 270, 1, 2, 2}};
  const bool limited = limit < std::numeric_limits<int64_t>::max();
  for (const auto& size : sizes) {
    for (int bits : {0, 5, 10, 15, 20, 25, 30, 31}) {  // every option with and without
      if (limited && bits != 10 && bits != 31) continue;
      const Shape n{{size[0], size[1], size[2], size[3], (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0},
                    size[4],
                    (bits & 8) != 0,
                    (bits & 16) != 0};
      const int before = failures;
      check<float>(n);
      check<double>(n);
      if (failures > before)
        std::printf("  at K %ld B %ld D %ld h %ld steps %ld complex %d gated %d clip %d derivatives %d stages %d\n",
                    long(n.models), long(n.starts), long(n.features), long(n.hidden), long(n.steps), n.complex, n.gated,
                    n.clip, n.derivatives, n.runge_kutta ? 4 : 1);
    }
  }
  return report();
}
