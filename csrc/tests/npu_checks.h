// Checks of the NPU family's kernels on every instruction set: against the formulas, with threads, at inf and nan.
#pragma once

#include <array>

#include "npu_cases.h"

template <typename T>
void check_npu(const Shape& n, int64_t times) {
  const Case<T> once(n), c = once.repeated(times);
  const Expected<T> expected(once);
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    const auto run = [&](int threads) {
      return Results<T>(c, kernels.npu_forward, kernels.npu_backward, workers(threads));
    };
    const Results<T> one = run(1), many = run(3);
    if (!one.same_bits(many)) {
      std::printf("FAILED: three threads give other bits than one\n");
      ++failures;
    }
    for (int part = times > 1 ? 3 : 0; part < Results<T>::kParts; ++part) {
      if (times > 1) compare_sum(Results<T>::kNames[part], one.part[part], expected.part[part], times);
      else compare(Results<T>::kNames[part], one.part[part], expected.part[part], expected.work(part));
    }
  });
}

// Every form of the kernels that can take a layer, whichever of them is the fastest.
template <typename T>
void check_npu_forms(const Shape& n) {
  const Case<T> c(n);
  const Expected<T> expected(c);
  on_each_isa([&] {
    const auto& kernels = npu::kernels<T>();
    for (int form = 0; form < 5; ++form) {
      const auto forward = [&](const npu::NpuForward<T>& f, const npu::Parallel& parallel) {
        if (!kernels.npu_forward_in(npu::NpuForwardForm(form), f, parallel)) kernels.npu_forward(f, parallel);
      };
      const auto backward = [&](const npu::NpuBackward<T>& f, const npu::Parallel& parallel) {
        if (!kernels.npu_backward_in(npu::NpuBackwardForm(form % 3), f, parallel)) kernels.npu_backward(f, parallel);
      };
      const int before = failures;
      const Results<T> one(c, forward, backward, workers(1));
      if (!one.same_bits(Results<T>(c, forward, backward, workers(3))))
        std::printf("FAILED: three threads give other bits than one\n"), ++failures;
      for (int part = 0; part < Results<T>::kParts; ++part)  // four times the bound: in few rows sums may cancel
        compare(Results<T>::kNames[part], one.part[part], expected.part[part], 16 * (1 + expected.work(part)));
      if (failures > before)
        std::printf("  form %d at B %ld I %ld O %ld\n", form, long(n.rows), long(n.in), long(n.out));
    }
  });
}

// A step at once: of the squares of y - target the loss and the gradients. The models' rows are far from one another.
template <typename T>
void check_npu_step(const Shape& n) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  Case<T> c(n);
  const int64_t count = n.rows * n.out, size = n.rows * n.in, apart = 3;
  std::vector<T> target(size_t(n.models * (count + apart)), nan), x(size_t(n.models * (size + apart)), nan);
  std::vector<long double> loss(size_t(n.models), 0);
  {
    const Expected<T> forward(c);
    for (int64_t k = 0; k < n.models; ++k) {
      std::copy_n(c.x.begin() + (n.shared_x ? 0 : k * size), size, x.begin() + k * (size + apart));
      for (int64_t i = 0; i < count; ++i) {
        const long double y = forward.part[0][size_t(k * count + i)], error = y - T(-y);  // nothing cancels
        target[size_t(k * (count + apart) + i)] = T(-y);
        c.grad_y[size_t(k * count + i)] = T(2 * error / (long double)count);
        loss[size_t(k)] += error * error / (long double)count;
      }
    }
  }
  const Expected<T> expected(c);
  on_each_isa([&] {
    std::array<std::vector<T>, 4> found;
    for (size_t part = 0; part < 3; ++part) found[part].assign(expected.part[part + 3].size(), nan);
    found[3].assign(size_t(n.models), nan);
    npu::NpuInputs<T> inputs = c.inputs();
    inputs.x = x.data();
    const npu::NpuBackward<T> backward{inputs,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       false,
                                       nullptr,
                                       found[0].data(),
                                       n.complex ? found[1].data() : nullptr,
                                       n.gated ? found[2].data() : nullptr};
    const auto step = npu::kernels<T>().npu_step;
    const bool steps = step({backward, size + apart, target.data(), count + apart, found[3].data()});
    const bool few = n.rows <= 1024;  // threads share the rows of more
    if (n.in <= 2 && n.out <= 2 && n.rows > 32 ? steps != few : steps && !few)
      std::printf("FAILED: %s step at once\n", steps ? "a" : "no"), ++failures;
    if (!steps) return;
    for (size_t part = 0; part < 3; ++part)
      compare(Results<T>::kNames[part + 3], found[part], expected.part[part + 3], expected.work(int(part) + 3));
    compare("loss", found[3], loss, count);
    const std::array<std::vector<T>, 4> before = found;
    step({backward, size + apart, target.data(), count + apart, nullptr});  // without the losses
    if (found != before) std::printf("FAILED: other bits without the losses\n"), ++failures;
  });
}

// Rows with inf and nan: a nan gives nan, and the rows beside them keep their bits. The sanitizers see the arithmetic
// on these bits.
template <typename T>
void check_special(const Shape& n) {
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const Case<T> plain(n);
  Case<T> special = plain;
  const T values[] = {inf, -inf, nan, -nan, T(0), T(-0.0)};
  for (int64_t b = 0; b < n.rows; b += 2)
    for (int64_t i = 0; i < n.in; ++i) special.x[b * n.in + i] = values[b / 2 % 6];
  const auto& kernels = npu::kernels<T>();
  const auto run = [&](const Case<T>& c) {
    return Results<T>(c, kernels.npu_forward, kernels.npu_backward, workers(1));
  };
  const Results<T> found = run(special), expected = run(plain);
  bool right = true;
  for (int64_t b = 0; b < n.rows; ++b) {
    const bool is_nan = b % 2 == 0 && std::isnan(special.x[b * n.in]);
    for (int64_t o = 0; o < n.out; ++o) {
      const T y = found.part[0][b * n.out + o];
      if (is_nan) right &= std::isnan(y);
      if (b % 2 == 1) right &= y == expected.part[0][b * n.out + o];
    }
    for (int64_t i = 0; i < n.in && b % 2 == 1; ++i)
      right &= found.part[2][b * n.in + i] == expected.part[2][b * n.in + i];
  }
  if (!right) std::printf("FAILED: rows with inf and nan, or the rows beside them\n"), ++failures;
}
