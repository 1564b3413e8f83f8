// Checks of the kernels of NAU and NAC, whose result is the input times a matrix, on every instruction set.
#pragma once

#include <algorithm>
#include <array>

#include "npu_cases.h"

// y, grad_x and grad_weight of a layer with one weight; nan where nothing was written.
template <typename T, typename Inputs, typename Forward, typename Backward>
std::array<std::vector<T>, 3> results_of(const char* layer, const Shape& n, const std::vector<T>& grad_y,
                                         const Inputs& inputs, Forward forward, Backward backward,
                                         int64_t factors = 1) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  std::array<std::vector<T>, 3> results[2];
  for (int run = 0; run < 2; ++run) {
    const npu::Parallel parallel = workers(run ? 3 : 1);
    auto& [y, gx, gw] = results[run];
    y.assign(n.models * n.rows * n.out, nan);
    gx.assign(n.models * n.rows * n.in, nan);
    gw.assign(n.models * n.out * n.in * factors, nan);
    forward({inputs, y.data()}, parallel);
    backward({inputs, grad_y.data(), gx.data(), gw.data()}, parallel);
  }
  if (results[0] != results[1]) std::printf("FAILED: %s: other bits from three threads\n", layer), ++failures;
  return results[0];
}

template <typename T>
void check_nau(const Shape& n, bool clip, int64_t times) {
  Case<T> c(n);
  for (T& w : c.wr) w *= 2;        // some lie outside [-1, 1]
  if (!c.wr.empty()) c.wr[0] = 1;  // the clip lets the gradient of its bounds through
  const Case<T> all = c.repeated(times);
  const npu::NauInputs<T> inputs{n.models, all.n.rows, n.in, n.out, all.x.data(), n.shared_x, c.wr.data(), clip};
  using V = std::vector<long double>;
  V y(n.models * n.rows * n.out), gx(n.models * n.rows * n.in), gw(c.wr.size());
  for (int64_t k = 0; k < n.models; ++k) {
    for (int64_t b = 0; b < n.rows; ++b) {
      const T* x = c.x.data() + ((n.shared_x ? 0 : k * n.rows) + b) * n.in;
      for (int64_t o = 0; o < n.out; ++o) {
        const int64_t at = (k * n.rows + b) * n.out + o;
        for (int64_t i = 0; i < n.in; ++i) {
          const T w = c.wr[(k * n.out + o) * n.in + i];
          const long double a = clip ? std::min<T>(std::max<T>(w, -1), 1) : w;
          y[at] += a * x[i];
          gx[(k * n.rows + b) * n.in + i] += a * c.grad_y[at];
          if (!clip || std::fabs(w) <= 1) gw[(k * n.out + o) * n.in + i] += (long double)x[i] * c.grad_y[at];
        }
      }
    }
  }
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    const auto results = results_of<T>("nau", all.n, all.grad_y, inputs, kernels.nau_forward, kernels.nau_backward);
    if (times > 1) return compare_sum("nau grad_weight", results[2], gw, times);
    compare("nau y", results[0], y, n.in);
    compare("nau grad_x", results[1], gx, n.out);
    compare("nau grad_weight", results[2], gw, n.rows);
  });
}

// The gradients of weight and mask also from that of their product, which the kernel gets in the place of either.
template <typename T>
void check_nac(const Shape& n, int64_t times) {
  const Case<T> c(n), all = c.repeated(times);
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const size_t count = c.wr.size();
  const npu::NacInputs<T> inputs{n.models, all.n.rows, n.in, n.out, all.x.data(), n.shared_x, c.wr.data(), c.wi.data()};
  using V = std::vector<long double>;
  V y(n.models * n.rows * n.out), gx(n.models * n.rows * n.in), product(count), gp(count), gw(count), gm(count);
  for (size_t e = 0; e < count; ++e) product[e] = tanhl(c.wr[e]) / (1 + expl(-(long double)c.wi[e]));
  for (int64_t k = 0; k < n.models; ++k) {
    for (int64_t b = 0; b < n.rows; ++b) {
      for (int64_t o = 0; o < n.out; ++o) {
        const int64_t at = (k * n.rows + b) * n.out + o;
        for (int64_t i = 0; i < n.in; ++i) {
          const int64_t e = (k * n.out + o) * n.in + i;
          const long double x = c.x[((n.shared_x ? 0 : k * n.rows) + b) * n.in + i];
          y[at] += product[e] * x;
          gx[(k * n.rows + b) * n.in + i] += product[e] * c.grad_y[at];
          gp[e] += x * c.grad_y[at];
        }
      }
    }
  }
  for (size_t e = 0; e < count; ++e) {
    const long double turn = tanhl(c.wr[e]), share = 1 / (1 + expl(-(long double)c.wi[e]));
    gw[e] = gp[e] * share * (1 - turn * turn);
    gm[e] = gp[e] * turn * share * (1 - share);
  }
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    std::array<std::vector<T>, 4> results[2];
    std::vector<T> parts(2 * count, nan), matrix(count, nan);
    for (int run = 0; run < 2; ++run) {
      const npu::Parallel parallel = workers(run ? 3 : 1);
      auto& [found_y, found_x, found_weight, found_mask] = results[run];
      found_y.assign(n.models * all.n.rows * n.out, nan);
      found_x.assign(n.models * all.n.rows * n.in, nan);
      found_weight.assign(count, nan);
      found_mask.assign(count, nan);
      kernels.nac_forward({inputs, found_y.data(), parts.data(), matrix.data()}, parallel);
      kernels.nac_backward({inputs, all.grad_y.data(), nullptr, parts.data(), matrix.data(), found_x.data(),
                            found_weight.data(), found_mask.data()},
                           parallel);
    }
    if (results[0] != results[1]) std::printf("FAILED: nac: other bits from three threads\n"), ++failures;
    if (times > 1) {
      compare_sum("nac grad_weight", results[0][2], gw, times);
      return compare_sum("nac grad_mask", results[0][3], gm, times);
    }
    compare("nac y", results[0][0], y, n.in + 8);
    compare("nac grad_x", results[0][1], gx, n.out + 8);
    compare("nac grad_weight", results[0][2], gw, n.rows + 8);
    compare("nac grad_mask", results[0][3], gm, n.rows + 8);
    for (const bool at_weight : {true, false}) {
      std::vector<T> weight(count, nan), mask(count, nan);
      std::copy(gp.begin(), gp.end(), (at_weight ? weight : mask).begin());
      T* const known = (at_weight ? weight : mask).data();
      if (count == 0) continue;
      kernels.nac_backward({inputs, nullptr, known, parts.data(), matrix.data(), nullptr, weight.data(), mask.data()},
                           workers(1));
      compare("nac grad_weight of the product's", weight, gw, 8);
      compare("nac grad_mask of the product's", mask, gm, 8);
    }
  });
}
