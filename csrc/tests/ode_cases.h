// What the tests of the ODE solvers share: models and starts at random, and their right-hand sides in long double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "isas.h"

using Long = std::vector<long double>;

struct OdeShape {
  int64_t models, starts, features, hidden;
  bool complex, gated, clip;

  int64_t rows() const { return models * starts; }
  int64_t matrix() const { return hidden * features; }
};

template <typename T>
struct OdeWeights {
  OdeShape n;
  std::mt19937_64 random{11};
  std::vector<T> u0, wr, wi, gate, a;
  const T eps = std::numeric_limits<T>::epsilon();

  explicit OdeWeights(const OdeShape& shape) : n(shape) {
    const double bound = 0.6 / std::max(1.0, n.features / 3.0);
    fill(u0, n.rows() * n.features, [](double v) { return v < 0 ? v - 1 : v + 1; });  // the right side jumps at 0
    fill(wr, n.models * n.matrix(), [&](double v) { return bound * v; });
    fill(wi, n.models * n.matrix(), [&](double v) { return 0.3 * bound * v; });
    // On both sides of the clips, but not so near that the differences would straddle one.
    const auto clear_of = [](double v, double low, double high) {
      return std::min(std::fabs(v - low), std::fabs(v - high)) < 1e-3 ? v + 2e-3 : v;
    };
    fill(gate, n.models * n.features, [&](double v) { return clear_of(0.5 + 0.7 * v, 0, 1); });
    fill(a, n.models * n.matrix(), [&](double v) { return clear_of(1.3 * v, -1, 1); });
  }

  void fill(std::vector<T>& v, int64_t count, const std::function<double(double)>& map) {
    std::uniform_real_distribution<double> unit(-1, 1);
    v.resize(size_t(count));
    for (T& e : v) e = T(map(unit(random)));
  }
  // Without the steps.
  npu::OdeInputs<T> inputs() const {
    return {n.models,
            n.starts,
            n.features,
            n.hidden,
            0,
            0,
            wr.data(),
            n.complex ? wi.data() : nullptr,
            n.gated ? gate.data() : nullptr,
            a.data(),
            n.clip,
            eps,
            nullptr,
            0,
            false};
  }
  Long start(int64_t row) const {
    const auto from = u0.begin() + row * n.features;
    return Long(from, from + n.features);
  }
};

// One model's weights in long double.
struct OdeModel {
  int64_t d, h;
  Long wr, wi, gate, a;
  long double eps;
  bool clip;

  template <typename T>
  OdeModel(const OdeWeights<T>& w, int64_t k)
      : d(w.n.features),
        h(w.n.hidden),
        wr(part(w.wr, k, d * h)),
        wi(w.n.complex ? part(w.wi, k, d * h) : Long(size_t(d * h))),
        gate(w.n.gated ? part(w.gate, k, d) : Long(size_t(d), 1)),
        a(part(w.a, k, d * h)),
        eps(w.eps),
        clip(w.n.clip) {}

  template <typename T>
  static Long part(const std::vector<T>& v, int64_t k, int64_t size) {
    return Long(v.begin() + k * size, v.begin() + (k + 1) * size);
  }

  Long rhs(const Long& u) const {
    const long double pi = 3.14159265358979323846264338327950288L;
    Long k(d);
    for (int64_t o = 0; o < h; ++o) {
      long double p = 0, q = 0;
      for (int64_t i = 0; i < d; ++i) {
        const long double g = std::min(std::max(gate[i], 0.0L), 1.0L);
        const long double l = logl(g * (fabsl(u[i]) + eps) + (1 - g)), turn = u[i] < 0 ? pi * g : 0;
        p += l * wr[o * d + i] - turn * wi[o * d + i];
        q += l * wi[o * d + i] + turn * wr[o * d + i];
      }
      for (int64_t i = 0; i < d; ++i) {
        const long double w = a[i * h + o];
        k[i] += (clip ? std::min(std::max(w, -1.0L), 1.0L) : w) * expl(p) * cosl(q);
      }
    }
    return k;
  }
};

// The derivative of a loss by central differences.
template <typename Loss>
long double derivative(long double& variable, const Loss& loss) {
  const long double value = variable, h = 1e-4L;
  const auto at = [&](long double change) {
    variable = value + change;
    return loss();
  };
  const long double found = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
  variable = value;
  return found;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
void compare(const char* what, const T* got, const Long& want, long double bound) {
  long double difference = 0, size = 0;
  for (size_t n = 0; n < want.size(); ++n) {
    difference += (got[n] - want[n]) * (got[n] - want[n]);
    size += want[n] * want[n];
    if (std::isnan(got[n])) difference = INFINITY;  // an output that was not written
  }
  const long double relative = size > 0 ? sqrtl(difference / size) : sqrtl(difference);
  if (relative <= bound) return;
  std::printf("FAILED: %s: relative error %Lg > %Lg\n", what, relative, bound);
  ++failures;
}

// What a part of the results should be, from an element on.
template <typename T, typename Results>
struct Expected {
  const char* name;
  std::vector<T> Results::* part;
  int64_t at;
  Long values;
  long double bound;
};
