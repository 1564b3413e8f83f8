// What the tests of the NPU kernels share: cases, and the formulas as plain long-double loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "isas.h"
#include "layers.h"
#include "workers.h"

constexpr long double kPi = 3.14159265358979323846264338327950288L;

// Of the whole: the root of the squared errors' sum. Infinite where an output was not written.
template <typename T>
long double relative_error(const std::vector<T>& got, const std::vector<long double>& want) {
  long double difference = 0, size = 0;
  for (size_t n = 0; n < want.size(); ++n) {
    difference += (got[n] - want[n]) * (got[n] - want[n]);
    size += want[n] * want[n];
    if (std::isnan(got[n])) difference = INFINITY;
  }
  return size > 0 ? sqrtl(difference / size) : sqrtl(difference);
}

inline void hold(const char* what, long double error, long double bound) {
  if (error <= bound) return;
  std::printf("FAILED: %s: relative error %Lg > %Lg\n", what, error, bound);
  ++failures;
}

template <typename T>
void compare(const char* what, const std::vector<T>& got, const std::vector<long double>& want, int64_t work) {
  hold(what, relative_error(got, want), 30 * std::numeric_limits<T>::epsilon() * sqrtl(1 + (long double)work));
}

// A sum over rows, each of which comes so many times.
template <typename T>
void compare_sum(const char* what, const std::vector<T>& got, std::vector<long double> want, int64_t times) {
  for (long double& w : want) w *= (long double)times;
  hold(what, relative_error(got, want), 64 * std::numeric_limits<T>::epsilon());
}

struct Shape {
  int64_t models, rows, in, out;
  bool shared_x, complex, gated, negative;
};

template <typename T>
struct Case {
  Shape n;
  std::vector<T> x, wr, wi, gate, grad_y;
  T eps = std::numeric_limits<T>::epsilon();
  int terms = 3;

  explicit Case(const Shape& shape) : n(shape) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<T>& v, int64_t count, double scale) {
      v.resize(count);
      for (T& e : v) e = T(scale * normal(random));
    };
    fill(x, (n.shared_x ? 1 : n.models) * n.rows * n.in, 1);
    if (!n.negative) {
      for (T& e : x) e = std::fabs(e);
      // Of many rows the last one alone has a sign: what holds for a block of rows need not for the next.
      for (int64_t i = 0; n.rows > 240 && i < n.in; i += 2) x[x.size() - 1 - i] *= -1;
    }
    fill(wr, n.models * n.out * n.in, 1 / std::sqrt(double(n.in)));
    fill(wi, n.models * n.out * n.in, 0.3 / std::sqrt(double(n.in)));
    fill(gate, n.models * n.in, 0.7);  // a good part lies outside [0, 1]
    fill(grad_y, n.models * n.rows * n.out, 1);
  }

  // The same rows again and again: their rounding errors do not cancel.
  Case repeated(int64_t times) const {
    Case many = *this;
    many.n.rows = n.rows * times;
    const auto repeat = [&](std::vector<T>& v, const std::vector<T>& once, int64_t parts) {
      v.clear();
      v.reserve(once.size() * size_t(times));
      const int64_t size = parts > 0 ? int64_t(once.size()) / parts : 0;
      for (int64_t part = 0; part < parts; ++part)
        for (int64_t k = 0; k < times; ++k)
          v.insert(v.end(), once.begin() + part * size, once.begin() + (part + 1) * size);
    };
    repeat(many.x, x, n.shared_x ? 1 : n.models);
    repeat(many.grad_y, grad_y, n.models);
    return many;
  }

  npu::NpuInputs<T> inputs() const {
    return {n.models,
            n.rows,
            n.in,
            n.out,
            x.data(),
            n.shared_x,
            wr.data(),
            n.complex ? wi.data() : nullptr,
            n.gated ? gate.data() : nullptr,
            eps,
            terms};
  }
};

// y, s and the gradients; empty where there is none.
template <typename T>
struct Results {
  static constexpr int kParts = 6;
  static constexpr const char* kNames[kParts] = {"y", "s", "grad_x", "grad_weight_re", "grad_weight_im", "grad_gate"};
  std::vector<T> part[kParts];

  template <typename Forward, typename Backward>
  Results(const Case<T>& c, Forward forward, Backward backward, const npu::Parallel& parallel) {
    const Shape& n = c.n;
    const int64_t outputs = n.models * n.rows * n.out, weights = n.models * n.out * n.in;
    const int64_t sizes[kParts] = {
        outputs, outputs, n.models * n.rows * n.in, weights, n.complex ? weights : 0, n.gated ? n.models * n.in : 0};
    for (int p = 0; p < kParts; ++p) part[p].assign(size_t(sizes[p]), std::numeric_limits<T>::quiet_NaN());
    forward({c.inputs(), part[0].data(), part[1].data()}, parallel);
    backward({c.inputs(), c.grad_y.data(), part[0].data(), part[1].data(), false, part[2].data(), part[3].data(),
              n.complex ? part[4].data() : nullptr, n.gated ? part[5].data() : nullptr},
             parallel);
  }

  bool same_bits(const Results& o) const {
    for (int p = 0; p < kParts; ++p)
      if (!part[p].empty() && std::memcmp(part[p].data(), o.part[p].data(), part[p].size() * sizeof(T)) != 0)
        return false;
    return true;
  }
};

// What Results should be.
template <typename T>
struct Expected {
  const Shape n;
  std::vector<long double> part[Results<T>::kParts];

  explicit Expected(const Case<T>& c) : n(c.n) {
    auto &y = part[0], &s = part[1], &gx = part[2], &gwr = part[3], &gwi = part[4], &gg = part[5];
    y.resize(size_t(n.models * n.rows * n.out));
    s.resize(y.size());
    gx.resize(size_t(n.models * n.rows * n.in));
    gwr.resize(size_t(n.models * n.out * n.in));
    if (n.complex) gwi.resize(gwr.size());
    if (n.gated) gg.resize(size_t(n.models * n.in));
    std::vector<long double> gate(n.in), size(n.in), r(n.in), l(n.in), m(n.in);
    for (int64_t k = 0; k < n.models; ++k) {
      for (int64_t b = 0; b < n.rows; ++b) {
        const T* x = c.x.data() + ((n.shared_x ? 0 : k * n.rows) + b) * n.in;
        for (int64_t i = 0; i < n.in; ++i) {
          gate[i] = n.gated ? std::min<T>(std::max<T>(c.gate[k * n.in + i], 0), 1) : 1;
          size[i] = fabsl(x[i]) + c.eps;
          r[i] = gate[i] * size[i] + (1 - gate[i]);
          l[i] = logl(r[i]);
          m[i] = x[i] < 0 ? kPi : 0;
        }
        for (int64_t o = 0; o < n.out; ++o) {
          const int64_t w0 = (k * n.out + o) * n.in, at = (k * n.rows + b) * n.out + o;
          const auto im = [&](int64_t i) { return n.complex ? (long double)c.wi[w0 + i] : 0; };
          long double p = 0, q = 0;
          for (int64_t i = 0; i < n.in; ++i) {
            p += l[i] * c.wr[w0 + i] - m[i] * gate[i] * im(i);
            q += l[i] * im(i) + m[i] * gate[i] * c.wr[w0 + i];
          }
          y[at] = expl(p) * cosl(q);
          s[at] = expl(p) * sinl(q);
          const long double dp = c.grad_y[at] * y[at], dq = -c.grad_y[at] * s[at];
          for (int64_t i = 0; i < n.in; ++i) {
            const long double dr = (dp * c.wr[w0 + i] + dq * im(i)) / r[i];
            gx[(k * n.rows + b) * n.in + i] += dr * gate[i] * (x[i] > 0 ? 1 : (x[i] < 0 ? -1 : 0));
            gwr[w0 + i] += dp * l[i] + dq * m[i] * gate[i];
            if (n.complex) gwi[w0 + i] += dq * l[i] - dp * m[i] * gate[i];
            if (n.gated && c.gate[k * n.in + i] >= 0 && c.gate[k * n.in + i] <= 1)
              gg[k * n.in + i] += dr * (size[i] - 1) + m[i] * (c.wr[w0 + i] * dq - im(i) * dp);
          }
        }
      }
    }
  }

  // Terms of the sums that an element of a part is made of.
  int64_t work(int p) const {
    const int64_t terms[] = {0, 0, n.out, n.rows, n.rows, n.rows + n.out};
    return n.in + terms[p];
  }
};
