// Checks of the NPU family's second derivatives on every instruction set: against the formulas, with threads.
#pragma once

#include <complex>
#include <optional>

#include "npu_cases.h"

// A direction in x, the weights and the gate; each may be absent.
template <typename T>
struct Direction {
  std::optional<std::vector<T>> x, re, im, gate;

  Direction(const Case<T>& c, bool by_x, bool by_weights, bool by_gate) {
    std::mt19937_64 random(11);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::optional<std::vector<T>>& v, bool given, size_t size) {
      if (!given) return;
      v.emplace(size);
      for (T& e : *v) e = T(normal(random));
    };
    fill(x, by_x, c.x.size());
    fill(re, by_weights, c.wr.size());
    fill(im, by_weights && c.n.complex, c.wi.size());
    fill(gate, by_gate && c.n.gated, c.gate.size());
  }
  static const T* pointer(const std::optional<std::vector<T>>& v) { return v ? v->data() : nullptr; }
  static long double at(const std::optional<std::vector<T>>& v, int64_t n) {
    return v ? (long double)(*v)[size_t(n)] : 0;
  }
};

// The gradients of grad_y, x (of every model), the weights and the gate, by the lines at the top of npu/second.cpp.
template <typename T>
std::array<std::vector<long double>, 5> expected_second(const Case<T>& c, const Direction<T>& v) {
  using Number = std::complex<long double>;
  const Shape& n = c.n;
  std::array<std::vector<long double>, 5> want;
  want[0].resize(size_t(n.models * n.rows * n.out));
  want[1].resize(size_t(n.models * n.rows * n.in));
  want[2].resize(c.wr.size());
  want[3].resize(c.wi.size());
  want[4].resize(c.gate.size());
  for (int64_t k = 0; k < n.models; ++k) {
    const auto gate_at = [&](int64_t i) { return n.gated ? (long double)c.gate[size_t(k * n.in + i)] : 1; };
    const auto passes = [&](int64_t i) { return n.gated && gate_at(i) >= 0 && gate_at(i) <= 1; };
    const auto weight = [&](const auto& re, const auto& im, int64_t o, int64_t i) {
      const size_t at = size_t((k * n.out + o) * n.in + i);
      return Number(re(at), n.complex ? im(at) : 0);
    };
    const auto w = [&](int64_t o, int64_t i) {
      return weight([&](size_t at) { return c.wr[at]; }, [&](size_t at) { return c.wi[at]; }, o, i);
    };
    const auto along_w = [&](int64_t o, int64_t i) {
      return weight([&](size_t at) { return v.at(v.re, at); }, [&](size_t at) { return v.at(v.im, at); }, o, i);
    };
    for (int64_t b = 0; b < n.rows; ++b) {
      const int64_t x0 = ((n.shared_x ? 0 : k * n.rows) + b) * n.in, y0 = (k * n.rows + b) * n.out;
      std::vector<Number> u(n.in), change(n.in), of_u(n.in), of_change(n.in);
      std::vector<long double> by_x(n.in), by_gate(n.in), sign(n.in), r(n.in), along_gate(n.in);
      for (int64_t i = 0; i < n.in; ++i) {
        const long double x = c.x[size_t(x0 + i)], g = std::min(1.0L, std::max(0.0L, gate_at(i)));
        const long double size = fabsl(x) + c.eps, turn = x < 0 ? kPi : 0;
        sign[i] = x > 0 ? 1 : (x < 0 ? -1 : 0);
        r[i] = g * size + 1 - g;
        by_x[i] = g * sign[i] / r[i];
        by_gate[i] = (size - 1) / r[i];
        along_gate[i] = passes(i) ? v.at(v.gate, k * n.in + i) : 0;
        u[i] = {logl(r[i]), turn * g};
        change[i] = {by_x[i] * v.at(v.x, x0 + i) + by_gate[i] * along_gate[i], turn * along_gate[i]};
      }
      for (int64_t o = 0; o < n.out; ++o) {
        Number e = 0, along = 0;
        for (int64_t i = 0; i < n.in; ++i) e += w(o, i) * u[i], along += w(o, i) * change[i] + along_w(o, i) * u[i];
        const Number power = std::exp(e);
        const long double grad = c.grad_y[size_t(y0 + o)];
        want[0][size_t(y0 + o)] = (power * along).real();
        const Number d = grad * std::conj(power), f = grad * std::conj(power * along);
        for (int64_t i = 0; i < n.in; ++i) {
          const Number of_w = f * std::conj(u[i]) + d * std::conj(change[i]);
          const size_t at = size_t((k * n.out + o) * n.in + i);
          want[2][at] += of_w.real();
          want[3][at] += of_w.imag();
          of_u[i] += std::conj(w(o, i)) * f + std::conj(along_w(o, i)) * d;
          of_change[i] += std::conj(w(o, i)) * d;
        }
      }
      for (int64_t i = 0; i < n.in; ++i) {
        const long double mixed = sign[i] / (r[i] * r[i]), along_x = v.at(v.x, x0 + i);
        want[1][size_t((k * n.rows + b) * n.in + i)] =
            of_u[i].real() * by_x[i] + of_change[i].real() * (along_gate[i] * mixed - along_x * by_x[i] * by_x[i]);
        if (!passes(i)) continue;
        const long double turn = c.x[size_t(x0 + i)] < 0 ? kPi : 0;
        want[4][size_t(k * n.in + i)] +=
            of_u[i].real() * by_gate[i] + of_u[i].imag() * turn +
            of_change[i].real() * (along_x * mixed - along_gate[i] * by_gate[i] * by_gate[i]);
      }
    }
  }
  if (!n.complex) want[3].clear();
  if (!n.gated) want[4].clear();
  return want;
}

// Terms cancel: some gradients are small beside what they are sums of.
template <typename T>
void hold_second(const char* name, const std::vector<T>& got, const std::vector<long double>& want, const Shape& n,
                 size_t part) {
  const auto work = (long double)(1 + n.in + n.out + (part > 1 ? n.rows : 0));
  hold(name, relative_error(got, want), 150 * std::numeric_limits<T>::epsilon() * sqrtl(work));
}

template <typename T>
void check_npu_second(const Shape& n) {
  const Case<T> c(n);
  const bool large = n.models * n.rows * n.in * n.out > 3000;  // with the whole direction alone
  for (int parts = large ? 7 : 1; parts < 8; ++parts) {
    const Direction<T> v(c, (parts & 1) != 0, (parts & 2) != 0, (parts & 4) != 0);
    const auto want = expected_second(c, v);
    on_each_isa([&] {
      const auto& kernels = npu::kernels<T>();
      const T nan = std::numeric_limits<T>::quiet_NaN();
      std::vector<T> y(want[0].size(), nan), s = y, results[2][5];
      kernels.npu_forward({c.inputs(), y.data(), s.data()}, workers(1));
      for (int run = 0; run < 2; ++run) {
        for (size_t part = 0; part < 5; ++part) results[run][part].assign(want[part].size(), nan);
        auto& found = results[run];
        kernels.npu_second({c.inputs(), c.grad_y.data(), y.data(), s.data(), false, v.pointer(v.x), v.pointer(v.re),
                            v.pointer(v.im), v.pointer(v.gate), found[0].data(), found[1].data(), found[2].data(),
                            n.complex ? found[3].data() : nullptr, n.gated ? found[4].data() : nullptr},
                           workers(run ? 3 : 1));
      }
      constexpr const char* kNames[] = {"second grad_y", "second x", "second weight_re", "second weight_im",
                                        "second gate"};
      for (size_t part = 0; part < 5; ++part) {
        if (results[0][part] != results[1][part])
          std::printf("FAILED: %s: three threads give other bits than one\n", kNames[part]), ++failures;
        hold_second(kNames[part], results[0][part], want[part], n, part);
      }
      // In two parts: what does not come through y and s, and a backward of what does, with 1 in place of grad_y.
      std::vector<T> of_y(y.size(), nan), of_s = of_y, ones(y.size(), T(1)), parts_of[2][5];
      for (auto& part : parts_of)
        for (size_t p = 0; p < 5; ++p) part[p].assign(want[p].size(), nan);
      auto &direct = parts_of[0], &through = parts_of[1];
      kernels.npu_second(
          {c.inputs(), c.grad_y.data(), y.data(), s.data(), false, v.pointer(v.x), v.pointer(v.re), v.pointer(v.im),
           v.pointer(v.gate), direct[0].data(), direct[1].data(), direct[2].data(),
           n.complex ? direct[3].data() : nullptr, n.gated ? direct[4].data() : nullptr, of_y.data(), of_s.data()},
          workers(2));
      for (size_t o = 0; o < y.size(); ++o) {
        const T of_p = of_y[o] * y[o] + of_s[o] * s[o];
        of_s[o] = of_y[o] * s[o] - of_s[o] * y[o], of_y[o] = of_p;
      }
      kernels.npu_backward(
          {c.inputs(), ones.data(), of_y.data(), of_s.data(), false, through[1].data(), through[2].data(),
           n.complex ? through[3].data() : nullptr, n.gated ? through[4].data() : nullptr},
          workers(1));
      for (size_t part = 1; part < 5; ++part) {
        for (size_t e = 0; e < want[part].size(); ++e) direct[part][e] += through[part][e];
        hold_second(kNames[part], direct[part], want[part], n, part);
      }
      std::vector<T> alone(want[0].size(), nan);  // forward mode's
      kernels.npu_second({c.inputs(), nullptr, y.data(), s.data(), false, v.pointer(v.x), v.pointer(v.re),
                          v.pointer(v.im), v.pointer(v.gate), alone.data(), nullptr, nullptr, nullptr, nullptr},
                         workers(1));
      if (alone != results[0][0]) std::printf("FAILED: other bits of dy alone\n"), ++failures;
    });
  }
}
