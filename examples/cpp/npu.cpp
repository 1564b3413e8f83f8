// A Neural Power Unit in C++, without torch, on OpenMP's threads: y = a b / c is one unit with the powers 1, 1, -1.
//
//   cmake -S . -B build/cpp -G Ninja -DNPU_KERNELS_OPENMP=ON
//   ninja -C build/cpp example_npu
//   OMP_NUM_THREADS=2 build/cpp/example_npu
#include <cmath>
#include <cstdio>
#include <vector>

#include "layers.h"
#include "openmp.h"

int main() {
  const int64_t rows = 100000, in = 3, out = 1;
  std::vector<float> x(rows * in);
  for (int64_t n = 0; n < rows * in; ++n) x[n] = (n % 2 ? 1.0f : -1.0f) * (0.5f + float(n % 1000) / 500);
  const std::vector<float> weight_re{1, 1, -1}, weight_im{0, 0, 0}, gate{1, 1, 1};
  const npu::NpuInputs<float> inputs{1,           rows, in, out, x.data(), false, weight_re.data(), weight_im.data(),
                                     gate.data(), 1e-7f};
  const npu::Parallel threads = npu::openmp_threads();

  std::vector<float> y(rows * out), s(rows * out);
  npu::kernels<float>().npu_forward({inputs, y.data(), s.data()}, threads);
  float error = 0;
  for (int64_t b = 0; b < rows; ++b) {
    const float expected = x[3 * b] * x[3 * b + 1] / x[3 * b + 2];
    error = std::fmax(error, std::fabs(y[b] / expected - 1));
  }

  // The gradient of the sum of y.
  const std::vector<float> grad_y(rows * out, 1);
  std::vector<float> grad_x(rows * in), grad_re(3), grad_im(3), grad_gate(3);
  npu::kernels<float>().npu_backward({inputs, grad_y.data(), y.data(), s.data(), false, grad_x.data(), grad_re.data(),
                                      grad_im.data(), grad_gate.data()},
                                     threads);
  float gradient_error = 0;
  for (int64_t n = 0; n < rows * in; ++n) {
    const float expected = weight_re[n % 3] * y[n / 3] / x[n];
    gradient_error = std::fmax(gradient_error, std::fabs(grad_x[n] / expected - 1));
  }
  std::printf("%s, %d threads: largest relative error of y %.1e, of its derivatives %.1e\n", npu::isa(),
              threads.threads, double(error), double(gradient_error));
  return !(error < 1e-5f && gradient_error < 1e-5f);
}
