// The kernels of every instruction set against plain long-double loops over the formulas, with threads of their own;
// and bitwise identical results from one thread as from many.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/scratch.h"
#include "matrix_checks.h"
#include "npu_checks.h"
#include "npu_second_checks.h"

namespace {

// Of some factors, the products of all but one, and of all.
class Products {
 public:
  template <typename Factor>
  Products(int64_t count, const Factor& factor) : before_(size_t(count + 1), 1), behind_(size_t(count + 1), 1) {
    for (int64_t i = 0; i < count; ++i) before_[i + 1] = before_[i] * factor(i);
    for (int64_t i = count; i-- > 0;) behind_[i] = behind_[i + 1] * factor(i);
  }
  long double all() const { return behind_[0]; }
  long double others(int64_t i) const { return before_[i] * behind_[i + 1]; }

 private:
  std::vector<long double> before_, behind_;
};

template <typename T>
void check_nmu(const Shape& n, int64_t times) {
  Case<T> c(n);
  for (T& w : c.wr) w = std::min<T>(std::fabs(w), 1);
  if (n.in > 2 && !c.x.empty() && !c.wr.empty()) c.wr[2] = 1, c.x[2] = 0;  // a factor that is exactly zero
  const Case<T> all = c.repeated(times);
  const npu::NmuInputs<T> inputs{n.models, all.n.rows, n.in, n.out, all.x.data(), n.shared_x, c.wr.data(), false};
  using V = std::vector<long double>;
  V y(n.models * n.rows * n.out), gx(n.models * n.rows * n.in), gw(c.wr.size());
  for (int64_t k = 0; k < n.models; ++k) {
    for (int64_t b = 0; b < n.rows; ++b) {
      const T* x = c.x.data() + ((n.shared_x ? 0 : k * n.rows) + b) * n.in;
      for (int64_t o = 0; o < n.out; ++o) {
        const T* w = c.wr.data() + (k * n.out + o) * n.in;
        const Products products(n.in, [&](int64_t i) { return (long double)w[i] * x[i] + (1 - (long double)w[i]); });
        const int64_t at = (k * n.rows + b) * n.out + o;
        y[at] = products.all();
        for (int64_t i = 0; i < n.in; ++i) {
          const long double e = c.grad_y[at] * products.others(i);
          gx[(k * n.rows + b) * n.in + i] += e * w[i];
          gw[(k * n.out + o) * n.in + i] += e * (x[i] - 1.0L);
        }
      }
    }
  }
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    const auto results = results_of<T>("nmu", all.n, all.grad_y, inputs, kernels.nmu_forward, kernels.nmu_backward);
    if (times > 1) return compare_sum("nmu grad_weight", results[2], gw, times);
    compare("nmu y", results[0], y, n.in);
    compare("nmu grad_x", results[1], gx, n.in + n.out);
    compare("nmu grad_weight", results[2], gw, n.in + n.rows);
  });
}

// The NMU's kernels of x' = [x, 1 / (x + eps)], its weights around [0, 1].
template <typename T>
void check_nmru(const Shape& n, bool separate, bool clip, int64_t times) {
  Case<T> c(n);
  const int64_t factors = 2 * n.in, models = n.models * n.out;
  std::vector<T> weight(size_t(models * factors));
  for (int64_t k = 0; k < models; ++k)
    for (int64_t i = 0; i < n.in; ++i)  // mostly small: a product of many others would vanish
      weight[k * factors + i] = std::fabs(c.wr[k * n.in + i]), weight[k * factors + n.in + i] = c.wi[k * n.in + i];
  for (size_t i = 0; i < c.x.size(); ++i) c.x[i] = (i % 3 ? 1 : -1) * (std::fabs(c.x[i]) + T(0.5));
  const Case<T> all = c.repeated(times);
  const T eps = separate ? T(0) : T(1e-3);
  const npu::NmuInputs<T> inputs{n.models,      all.n.rows, n.in, n.out,    all.x.data(), n.shared_x,
                                 weight.data(), clip,       true, separate, eps};
  using V = std::vector<long double>;
  V y(n.models * n.rows * n.out), gx(n.models * n.rows * n.in), gw(weight.size()), both(factors);
  for (int64_t k = 0; k < n.models; ++k) {
    for (int64_t b = 0; b < n.rows; ++b) {
      const T* x = c.x.data() + ((n.shared_x ? 0 : k * n.rows) + b) * n.in;
      for (int64_t i = 0; i < n.in; ++i) both[i] = x[i], both[n.in + i] = 1 / ((long double)x[i] + eps);
      for (int64_t o = 0; o < n.out; ++o) {
        const T* given = weight.data() + (k * n.out + o) * factors;
        long double turns = 0;
        const auto w = [&](int64_t i) -> long double {
          return clip ? std::min<T>(std::max<T>(given[i], 0), 1) : given[i];
        };
        const Products products(factors,
                                [&](int64_t i) { return w(i) * (separate ? fabsl(both[i]) : both[i]) + (1 - w(i)); });
        for (int64_t i = 0; separate && i < factors; ++i) turns += both[i] < 0 ? given[i] : 0;
        const int64_t at = (k * n.rows + b) * n.out + o;
        const long double size = products.all(), cosine = cosl(kPi * turns);
        y[at] = size * cosine;
        for (int64_t i = 0; i < factors; ++i) {
          const long double e = c.grad_y[at] * cosine * products.others(i), sign = separate && both[i] < 0 ? -1 : 1;
          const long double derivative = i < n.in ? 1 : -both[i] * both[i];
          gx[(k * n.rows + b) * n.in + i % n.in] += e * w(i) * sign * derivative;
          long double& g = gw[(k * n.out + o) * factors + i];
          if (!clip || (given[i] >= 0 && given[i] <= 1)) g += e * (sign * both[i] - 1.0L);
          if (separate && both[i] < 0) g -= c.grad_y[at] * kPi * size * sinl(kPi * turns);
        }
      }
    }
  }
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    const auto results = results_of<T>("nmru", all.n, all.grad_y, inputs, kernels.nmu_forward, kernels.nmu_backward, 2);
    if (times > 1) return compare_sum("nmru grad_weight", results[2], gw, times);
    compare("nmru y", results[0], y, 4 * factors);
    compare("nmru grad_x", results[1], gx, 4 * factors + n.out);
    compare("nmru grad_weight", results[2], gw, 4 * factors + n.rows);
  });
}

// The values of a case as those of a loss: x has other than y's size, so grad_y is y and y's target is sampled again.
template <typename T>
void check_mse(const Shape& n, int64_t times) {
  const Case<T> c = Case<T>(n).repeated(times);
  const int64_t count = c.n.rows * n.out;
  std::vector<T> target((n.shared_x ? 1 : n.models) * count), scale(n.models);
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  for (T& e : target) e = T(normal(random));
  for (T& e : scale) e = T(normal(random));
  const npu::MseInputs<T> inputs{n.models, count, c.grad_y.data(), target.data(), n.shared_x};
  std::vector<long double> loss(n.models), grad(n.models * count);
  for (int64_t k = 0; k < n.models; ++k) {
    for (int64_t e = 0; e < count; ++e) {
      const long double d = (long double)c.grad_y[k * count + e] - target[(n.shared_x ? 0 : k * count) + e];
      loss[k] += d * d / count;
      grad[k * count + e] = 2 * d / count * scale[k];
    }
  }
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    std::vector<T> losses[2], grads[2];
    for (int run = 0; run < 2; ++run) {
      losses[run].assign(n.models, 0);
      grads[run].assign(n.models * count, 0);
      kernels.mse_forward({inputs, losses[run].data()}, workers(run ? 3 : 1));
      kernels.mse_backward({inputs, scale.data(), grads[run].data()}, workers(run ? 3 : 1));
    }
    if (count == 0) {
      for (const T loss : losses[0])
        if (!std::isnan(loss)) std::printf("FAILED: mse: the mean of nothing is nan\n"), ++failures;
      return;
    }
    if (losses[0] != losses[1] || grads[0] != grads[1])
      std::printf("FAILED: mse: other bits from three threads\n"), ++failures;
    compare("mse", losses[0], loss, 1);
    compare("mse grad_y", grads[0], grad, 1);
  });
}

// At most one factor of a sign product is 0, by x = 0, the last value of all, at a weight whose tanh and sigmoid are 1.
template <typename T>
void check_inalu(const Shape& n, int64_t times) {
  Case<T> c(n);
  std::vector<T> parameters[5];  // weight_add, mask_add, weight_mul, mask_mul, gate_weight
  std::mt19937_64 random(8);
  std::normal_distribution<double> normal;
  for (auto& p : parameters) {
    p.resize(n.models * n.out * n.in);
    for (T& e : p) e = T(normal(random) / std::sqrt(double(n.in)));
  }
  const size_t last = parameters[2].size() - n.in * n.out + n.in - 1;  // of the last model's first out
  if (n.in > 2 && !c.x.empty() && !c.wr.empty()) c.x.back() = 0, parameters[2][last] = parameters[3][last] = 60;
  const Case<T> all = c.repeated(times);
  const T eps = T(1e-7), omega = T(0.5);
  const npu::InaluInputs<T> inputs{n.models,
                                   all.n.rows,
                                   n.in,
                                   n.out,
                                   all.x.data(),
                                   n.shared_x,
                                   parameters[0].data(),
                                   parameters[1].data(),
                                   parameters[2].data(),
                                   parameters[3].data(),
                                   parameters[4].data(),
                                   eps,
                                   omega};
  std::vector<long double> want[7];
  for (int part = 0; part < 7; ++part)
    want[part].resize(part < 2 ? n.models * n.rows * (part ? n.in : n.out) : parameters[0].size());
  const auto sigmoid = [](long double v) { return 1 / (1 + expl(-v)); };
  // Of both pairs of weight and mask: tanh(weight) * sigmoid(mask) and its derivatives, which no row changes. The mask
  // is taken as the kernel's type rounds it: whether a factor is 0 depends on it.
  std::vector<std::array<long double, 3>> nac[2];
  for (int pair = 0; pair < 2; ++pair) {
    for (size_t e = 0; e < parameters[0].size(); ++e) {
      const T weight = parameters[2 * pair][e], mask = parameters[2 * pair + 1][e];
      const long double turn = tanhl(weight), share = sigmoid(mask);
      nac[pair].push_back({turn * (mask > 50 ? 1.0L : share), share * (1 - turn * turn), turn * share * (1 - share)});
    }
  }
  for (int64_t k = 0; k < n.models; ++k) {
    for (int64_t b = 0; b < n.rows; ++b) {
      const T* x = c.x.data() + ((n.shared_x ? 0 : k * n.rows) + b) * n.in;
      std::vector<long double> add(n.in), mul(n.in), m(n.in), log(n.in);
      for (int64_t i = 0; i < n.in; ++i) {
        m[i] = x[i] < 0 ? -2 : (x[i] == 0 ? -1 : 0);
        log[i] = logl(std::max<T>(std::fabs(x[i]), eps));
      }
      for (int64_t o = 0; o < n.out; ++o) {
        const int64_t w0 = (k * n.out + o) * n.in, at = (k * n.rows + b) * n.out + o;
        long double h = 0, a = 0, e = 0;
        for (int64_t i = 0; i < n.in; ++i) {
          add[i] = nac[0][size_t(w0 + i)][0];
          mul[i] = nac[1][size_t(w0 + i)][0];
          h += parameters[4][w0 + i] * (long double)x[i];
          a += add[i] * x[i];
          e += mul[i] * log[i];
        }
        const Products products(n.in, [&](int64_t i) { return 1 + m[i] * fabsl(mul[i]); });
        const long double g = sigmoid(h), rest = sigmoid(-h), size = expl(std::min<long double>(e, omega));
        const long double t = size * products.all(), up = c.grad_y[at];
        want[0][at] = g * a + rest * t;
        const long double d_e = e > omega ? 0 : up * rest * t, d_h = up * g * rest * (a - t);
        for (int64_t i = 0; i < n.in; ++i) {
          const long double derivative = std::fabs(x[i]) >= eps ? 1 / (long double)x[i] : 0;
          want[1][(k * n.rows + b) * n.in + i] +=
              up * g * add[i] + d_h * parameters[4][w0 + i] + d_e * mul[i] * derivative;
          const long double sign = mul[i] > 0 ? 1 : (mul[i] < 0 ? -1 : 0);
          const long double d_add = up * g * x[i];
          const long double d_mul = d_e * log[i] + sign * m[i] * up * rest * size * products.others(i);
          for (int pair = 0; pair < 2; ++pair) {
            const auto& derivatives = nac[pair][size_t(w0 + i)];
            want[2 + 2 * pair][w0 + i] += (pair ? d_mul : d_add) * derivatives[1];
            want[3 + 2 * pair][w0 + i] += (pair ? d_mul : d_add) * derivatives[2];
          }
          want[6][w0 + i] += d_h * x[i];
        }
      }
    }
  }
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    const T nan = std::numeric_limits<T>::quiet_NaN();
    std::vector<T> results[2][7];  // y, grad_x, the parameters' gradients
    for (int run = 0; run < 2; ++run) {
      const npu::Parallel parallel = workers(run ? 3 : 1);
      auto& found = results[run];
      std::vector<T> h(n.models * all.n.rows * n.out, nan), a = h, t = h;
      std::vector<int32_t> flags(h.size(), -1);
      found[0] = h;
      found[1].assign(n.models * all.n.rows * n.in, nan);
      for (int p = 2; p < 7; ++p) found[p].assign(n.models * n.out * n.in, nan);
      // The second run computes the weights' parts again.
      std::vector<T> saved(4 * n.models * n.out * n.in, nan);
      T* parts = run ? nullptr : saved.data();
      kernels.inalu_forward({inputs, found[0].data(), h.data(), a.data(), t.data(), flags.data(), parts}, parallel);
      kernels.inalu_backward(
          {inputs, all.grad_y.data(), h.data(), a.data(), t.data(), flags.data(), parts, found[1].data(),
           found[2].data(), found[3].data(), found[4].data(), found[5].data(), found[6].data()},
          parallel);
    }
    for (int part = 0; part < 7; ++part) {
      if (results[0][part] != results[1][part])
        std::printf("FAILED: inalu: other bits from three threads, or without the parts\n"), ++failures;
    }
    const char* names[] = {
        "y", "grad_x", "grad_weight_add", "grad_mask_add", "grad_weight_mul", "grad_mask_mul", "grad_gate_weight"};
    for (int part = times > 1 ? 2 : 0; part < 7; ++part) {
      const std::string what = std::string("inalu ") + names[part];
      if (times > 1) compare_sum(what.c_str(), results[0][part], want[part], times);
      else compare(what.c_str(), results[0][part], want[part], n.in + (part == 1 ? n.out : part > 1 ? n.rows : 0));
    }
  });
}

// An input of 0 comes last, where the derivative of |x| is 0.
template <typename T>
void check_nalu(const Shape& n, bool with_bias, int64_t times) {
  Case<T> c(n);
  std::vector<T> parameters[4];  // weight, mask, gate_weight, gate_bias
  std::mt19937_64 random(8);
  std::normal_distribution<double> normal;
  for (int p = 0; p < 4; ++p) {
    parameters[p].resize(n.models * n.out * (p < 3 ? n.in : 1));
    for (T& e : parameters[p]) e = T(normal(random) / (p < 3 ? std::sqrt(double(n.in)) : 1));
  }
  if (!c.x.empty()) c.x.back() = 0;
  const Case<T> all = c.repeated(times);
  const T eps = T(1e-3);
  const T* const bias = with_bias ? parameters[3].data() : nullptr;
  const npu::NaluInputs<T> inputs{n.models,
                                  all.n.rows,
                                  n.in,
                                  n.out,
                                  all.x.data(),
                                  n.shared_x,
                                  parameters[0].data(),
                                  parameters[1].data(),
                                  parameters[2].data(),
                                  bias,
                                  eps};
  constexpr int kResults = 6;  // y, grad_x, the parameters' gradients
  std::vector<long double> want[kResults];
  want[0].resize(n.models * n.rows * n.out);
  want[1].resize(n.models * n.rows * n.in);
  for (int p = 0; p < 4; ++p) want[2 + p].resize(parameters[p].size());
  const auto sigmoid = [](long double v) { return 1 / (1 + expl(-v)); };
  for (int64_t k = 0; k < n.models; ++k) {
    for (int64_t b = 0; b < n.rows; ++b) {
      const T* x = c.x.data() + ((n.shared_x ? 0 : k * n.rows) + b) * n.in;
      for (int64_t o = 0; o < n.out; ++o) {
        const int64_t w0 = (k * n.out + o) * n.in, at = (k * n.rows + b) * n.out + o;
        const auto nac = [&](int64_t i) { return tanhl(parameters[0][w0 + i]) * sigmoid(parameters[1][w0 + i]); };
        const auto size = [&](int64_t i) { return fabsl(x[i]) + eps; };
        long double h = with_bias ? parameters[3][k * n.out + o] : 0, a = 0, e = 0;
        for (int64_t i = 0; i < n.in; ++i) {
          h += parameters[2][w0 + i] * (long double)x[i];
          a += nac(i) * x[i];
          e += nac(i) * logl(size(i));
        }
        const long double g = sigmoid(h), rest = sigmoid(-h), t = expl(e), up = c.grad_y[at];
        const long double d_a = up * g, d_e = up * rest * t, d_h = d_a * rest * (a - t);
        want[0][at] = g * a + rest * t;
        want[5][k * n.out + o] += d_h;
        for (int64_t i = 0; i < n.in; ++i) {
          const long double turn = tanhl(parameters[0][w0 + i]), share = sigmoid(parameters[1][w0 + i]);
          const long double derivative = (x[i] > 0 ? 1 : (x[i] < 0 ? -1 : 0)) / size(i);
          const long double d_w = d_a * x[i] + d_e * logl(size(i));
          want[1][(k * n.rows + b) * n.in + i] += (d_a + d_e * derivative) * nac(i) + d_h * parameters[2][w0 + i];
          want[2][w0 + i] += d_w * share * (1 - turn * turn);
          want[3][w0 + i] += d_w * turn * share * (1 - share);
          want[4][w0 + i] += d_h * x[i];
        }
      }
    }
  }
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    const T nan = std::numeric_limits<T>::quiet_NaN();
    std::vector<T> results[2][kResults];
    for (int run = 0; run < 2; ++run) {
      const npu::Parallel parallel = workers(run ? 3 : 1);
      auto& found = results[run];
      std::vector<T> h(n.models * all.n.rows * n.out, nan), a = h, t = h;
      found[0] = h;
      found[1].assign(n.models * all.n.rows * n.in, nan);
      for (int p = 0; p < 4; ++p) found[2 + p].assign(parameters[p].size(), nan);
      // The second run computes the weights' parts again.
      std::vector<T> saved(2 * n.models * n.out * n.in, nan);
      T* parts = run ? nullptr : saved.data();
      kernels.nalu_forward({inputs, found[0].data(), h.data(), a.data(), t.data(), parts}, parallel);
      kernels.nalu_backward({inputs, all.grad_y.data(), h.data(), a.data(), t.data(), parts, found[1].data(),
                             found[2].data(), found[3].data(), found[4].data(), with_bias ? found[5].data() : nullptr},
                            parallel);
    }
    const char* names[] = {"y", "grad_x", "grad_weight", "grad_mask", "grad_gate_weight", "grad_gate_bias"};
    for (int part = 0; part < (with_bias ? kResults : kResults - 1); ++part) {
      if (results[0][part] != results[1][part])
        std::printf("FAILED: nalu: other bits from three threads, or without the parts\n"), ++failures;
      const std::string what = std::string("nalu ") + names[part];
      if (times > 1 && part >= 2) compare_sum(what.c_str(), results[0][part], want[part], times);
      else if (times == 1)
        compare(what.c_str(), results[0][part], want[part], n.in + (part == 1 ? n.out : part > 1 ? n.rows : 0));
    }
  });
}

// All layers at one shape, whose rows come `times` times.
void check_all(const Shape& n, int bits, int64_t times) {
  const int before = failures;
  check_npu<float>(n, times);
  check_npu<double>(n, times);
  if (times == 1 && n.in * n.out > 0 && n.in * n.out <= 12) {
    check_npu_step<float>(n);
    check_npu_step<double>(n);
  }
  if (times == 1 && n.in < 160 && n.rows < 300 && n.models * n.rows * n.in * n.out < 100000) {
    check_npu_second<float>(n);
    check_npu_second<double>(n);
  }
  if (bits < 2 && n.in < 40) {
    check_nmu<float>(n, times);
    check_nmu<double>(n, times);
  }
  if (bits < 2 && n.in < 20 && n.rows < 300) {
    check_nmru<float>(n, true, false, times);
    check_nmru<double>(n, true, true, times);
    check_nmru<float>(n, false, true, times);
    check_nmru<double>(n, false, false, times);
  }
  if (bits < 2) {
    check_nau<float>(n, true, times);
    check_nau<double>(n, false, times);
    check_nac<float>(n, times);
    check_nac<double>(n, times);
    check_mse<float>(n, times);
    check_mse<double>(n, times);
  }
  if ((bits & ~9) == 0) {
    check_nalu<float>(n, n.shared_x, times);
    check_nalu<double>(n, !n.shared_x, times);
  }
  if ((bits & ~9) == 0 && n.in < 160) {
    check_inalu<float>(n, times);
    check_inalu<double>(n, times);
  }
  if (failures > before)
    std::printf("  at K %ld B %ld x %ld I %ld O %ld shared %d complex %d gated %d negative %d\n", long(n.models),
                long(n.rows), long(times), long(n.in), long(n.out), n.shared_x, n.complex, n.gated, n.negative);
}

// The scratch of a thread is one block: consecutive requests lie next to each other. The heap has its own
// bytes between two blocks.
void check_kept_scratch() {
#if !defined(NPU_SANITIZED)  // there every block comes from the heap
  constexpr size_t kSmall = size_t(1) << 16, kLarge = size_t(1) << 22;
  const auto both = [](size_t first, size_t second) {
    char* const a = static_cast<char*>(npu::take_scratch(first));
    char* const b = static_cast<char*>(npu::take_scratch(second));
    npu::give_back_scratch(b, second);
    npu::give_back_scratch(a, first);
    return b - a;
  };
  both(kLarge, kSmall);
  both(kSmall, kSmall);  // now the thread knows how much it needs
  if (both(kSmall, kSmall) != ptrdiff_t(kSmall))
    std::printf("FAILED: no scratch is kept after a large block\n"), ++failures;
#endif
}

}  // namespace

int main(int count, char** names) {
  if (!read_arguments(count, names)) return 77;
  check_kept_scratch();
  const int64_t sizes[][4] = {
      {1, 0, 3, 2},     {1, 1, 1, 1},     {1, 7, 2, 6},     {1, 100, 6, 2},   {1, 47, 15, 16},   {1, 48, 16, 17},
      {1, 49, 17, 1},   {1, 130, 33, 5},  {3, 20, 6, 2},    {2, 65, 9, 31},   {1, 1100, 5, 7},   {2, 1030, 3, 4},
      {1, 33, 65, 66},  {1, 700, 24, 40}, {1, 50, 400, 18}, {1, 20, 400, 37}, {2, 5, 33, 18},    {1, 307, 150, 7},
      {2, 90, 131, 4},  {1, 40, 8, 8},    {2, 37, 4, 7},    {1, 21, 7, 3},    {1, 700, 1100, 2}, {0, 5, 3, 2},
      {0, 5, 33, 2},    {2, 0, 33, 3},    {1, 5, 0, 3},     {1, 5, 3, 0},     {1, 5, 33, 0},     {1, 5, 0, 0},
      {1, 0, 0, 0},     {1, 700, 0, 0},   {2, 700, 33, 0},  {2, 700, 0, 3},   {2, 128, 2, 1},    {1, 250, 2, 2},
      {2, 1100, 1, 4},  {2, 119, 3, 1},   {3, 60, 40, 1},   {2, 65, 50, 3},   {2, 130, 33, 2},   {1, 620, 120, 6},
      {1, 300, 480, 6}, {2, 1040, 20, 5}, {2, 1600, 17, 5}, {3, 51, 20, 7},   {1, 70, 4, 1},     {2, 70, 8, 1}};
  // Rows, inputs, outputs, how often: sums whose rounding errors must not grow with the number of rows.
  const int64_t many[][4] = {{1, 1, 1, 1000003}, {1, 6, 2, 50001}, {1, 20, 3, 20001}, {3, 70, 5, 5001}};
  // Large sizes come with six of the sixteen combinations, in which every property comes both ways. With a limit all
  // do, and with the second, in which more layers share x.
  constexpr int64_t kMany = 100000;
  const bool limited = limit < kMany;
  for (int bits = 0; bits < 16; ++bits) {
    const bool shared = (bits & 1) != 0, complex = (bits & 2) != 0, gated = (bits & 4) != 0, negative = (bits & 8) != 0;
    for (const auto& size : sizes) {
      const int64_t products = size[0] * size[1] * size[2] * size[3];
      const bool some = bits % 3 == 0 || (limited && bits == 1);
      if (products <= limit && (some || (products < kMany && !limited)))
        check_all({size[0], size[1], size[2], size[3], shared, complex, gated, negative}, bits, 1);
    }
    for (const auto& size : many)
      if (bits % 6 == 0 &&
          size[0] * size[1] * size[2] * size[3] <= limit)  // every property comes both ways, x is not shared
        check_all({1, size[0], size[1], size[2], shared, complex, gated, negative}, bits, size[3]);
  }
  // Around the limits between the forms of the NPU's kernels, for registers of 2 to 16 values.
  for (const int64_t in : {2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 33, 256}) {
    for (const int64_t out : {1, 2, 3, 5, 6}) {
      for (const int64_t rows : {1, 8, 9, 13, 24, 25, 33}) {
        if (rows * in * out > limit) continue;
        check_npu_forms<float>({1, rows, in, out, false, true, true, true});
        check_npu_forms<double>({1, rows, in, out, false, rows % 2 == 0, true, out % 2 == 0});
      }
    }
  }
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{24, 3, 2}, {24, 1, 1}, {24, 12, 20}}) {
    const Shape shape{1, rows, in, out, false, true, false, true};
    on_each_isa([&] { check_special<float>(shape), check_special<double>(shape); });
  }
  // So many outputs that the chunks of the narrow layers' backward are shorter than a span of rows.
  if (limit > 25000) check_npu<float>({1, 1023, 2, 2100, false, true, true, true}, 1);
  return report();
}
