// Times the forms of the NPU's kernels on both sides of the limits in core/npu/limits.h, on one thread of this
// processor:
//
//   ninja -C build limits_times && build/limits_times [instruction sets] > times.txt
//
// A line for each size has the nanoseconds of the kernel, and of each form that can take the layer. The program fails
// where a form is 30 % faster than the kernel, or where a layer with one row, input or out more is faster by 15 %.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "npu_cases.h"

namespace {

constexpr double kMax = 1.15;
constexpr double kMaxOfForms = 1.3;  // a limit that is right for one processor is a little off for another
constexpr const char* kForward[] = {"kernel", "tiny", "few outputs", "few rows", "panels", "outputs"};
constexpr const char* kBackward[] = {"kernel", "few outputs", "wide", "narrow"};
using Times = std::vector<double>;  // of the kernel, then of the forms; infinite where one cannot take the layer
using Calls = std::vector<std::function<bool()>>;

// The least of many short runs, of all calls in turn: other processes only make runs longer.
void measure(const Calls& calls, Times& best) {
  using Clock = std::chrono::steady_clock;
  const auto time = [](const std::function<bool()>& call, int count) {
    const auto start = Clock::now();
    for (int n = 0; n < count; ++n) call();
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / count;
  };
  for (int round = 0; round < 15; ++round)
    for (size_t n = 0; n < calls.size(); ++n)
      if (round == 0 ? calls[n]() : best[n] < INFINITY)
        best[n] = std::min(best[n], time(calls[n], std::max(1, int(2e4 / std::min(best[n], 2e4)))));
}

template <typename T>
class Layer {
 public:
  explicit Layer(const Shape& n) : c_(n) {
    const int64_t outputs = n.rows * n.out;
    for (int part = 0; part < 6; ++part)
      results_[part].resize(size_t(part < 2 ? outputs : std::max(n.rows, n.out) * n.in));
    forward_ = {c_.inputs(), results_[0].data(), results_[1].data()};
    backward_ = {c_.inputs(),
                 c_.grad_y.data(),
                 results_[0].data(),
                 results_[1].data(),
                 false,
                 results_[2].data(),
                 results_[3].data(),
                 n.complex ? results_[4].data() : nullptr,
                 results_[5].data()};
    const auto& kernels = npu::kernels<T>();
    kernels.npu_forward(forward_, serial_);
    calls_[0].push_back([&] { return kernels.npu_forward(forward_, serial_), true; });
    for (int form = 0; form < 5; ++form)
      calls_[0].push_back([&, form] { return kernels.npu_forward_in(npu::NpuForwardForm(form), forward_, serial_); });
    calls_[1].push_back([&] { return kernels.npu_backward(backward_, serial_), true; });
    for (int form = 0; form < 3; ++form)
      calls_[1].push_back(
          [&, form] { return kernels.npu_backward_in(npu::NpuBackwardForm(form), backward_, serial_); });
    for (int pass = 0; pass < 2; ++pass) {
      times[pass].assign(calls_[pass].size(), INFINITY);
      again(pass);
    }
  }
  Layer(const Layer&) = delete;

  void again(int pass) { measure(calls_[pass], times[pass]); }

  Times times[2];  // of the forward and of the backward

 private:
  Case<T> c_;
  std::vector<T> results_[6];
  npu::NpuForward<T> forward_;
  npu::NpuBackward<T> backward_;
  const npu::Parallel serial_;
  Calls calls_[2];
};

// Sizes that grow by one row, input or out; others come between that are no neighbours.
template <typename T>
void walk(const std::vector<Shape>& sizes) {
  const auto step = [](const Shape& a, const Shape& b) { return b.rows - a.rows + b.in - a.in + b.out - a.out; };
  std::vector<std::unique_ptr<Layer<T>>> layers;
  for (size_t n = 0; n < sizes.size(); ++n) {
    layers.push_back(std::make_unique<Layer<T>>(sizes[n]));
    for (int pass = 0; pass < 2; ++pass) {
      Layer<T>& layer = *layers[n];
      Layer<T>* const before = n > 0 && step(sizes[n - 1], sizes[n]) == 1 ? layers[n - 1].get() : nullptr;
      const auto best = [&] { return std::min_element(layer.times[pass].begin(), layer.times[pass].end()); };
      const auto is_slow = [&] { return layer.times[pass][0] > kMaxOfForms * *best(); };
      const auto falls = [&] { return before != nullptr && before->times[pass][0] > kMax * layer.times[pass][0]; };
      for (int more = 0; more < 5 && is_slow(); ++more) layer.again(pass);
      for (int more = 0; more < 5 && falls(); ++more) before->again(pass);
      const Shape& size = sizes[n];
      std::printf("%s %s %s %s B %ld I %ld O %ld:", npu::isa(), sizeof(T) == 4 ? "float" : "double",
                  size.complex ? "NPU" : "RealNPU", pass ? "backward" : "forward", long(size.rows), long(size.in),
                  long(size.out));
      const char* const* const names = pass ? kBackward : kForward;
      for (size_t k = 0; k < layer.times[pass].size(); ++k)
        if (layer.times[pass][k] < INFINITY) std::printf(" %s %.0f", names[k], layer.times[pass][k]);
      if (is_slow())
        std::printf("  SLOWER than %s, %.2f", names[best() - layer.times[pass].begin()],
                    layer.times[pass][0] / *best());
      if (falls()) std::printf("  FASTER than the size before, %.2f", before->times[pass][0] / layer.times[pass][0]);
      failures += is_slow() + falls();
      std::printf("\n");
    }
    if (n > 0) layers[n - 1].reset();
  }
}

}  // namespace

int main(int count, char** words) {
  if (!read_arguments(count, words)) return 77;
  on_each_isa([] {
    for (const bool complex : {true, false}) {
      std::vector<Shape> sizes;
      const auto add = [&](int64_t rows, int64_t in, int64_t out) {
        sizes.push_back({1, rows, in, out, false, complex, true, true});
      };
      const int64_t layers[][2] = {{1, 1},   {2, 1},   {2, 6},     {4, 2},    {4, 4},    {6, 2},  {6, 6},
                                   {8, 8},   {12, 12}, {16, 1},    {16, 4},   {16, 16},  {32, 2}, {32, 16},
                                   {64, 64}, {128, 2}, {128, 128}, {300, 16}, {400, 200}};
      for (const auto& [in, out] : layers)
        for (int64_t rows = 1; rows <= 100;
             rows += rows < 35 || rows % 48 == 0 ? 1 : (rows % 8 == 0 ? 8 : 8 - rows % 8))
          add(rows, in, out);
      for (const int64_t rows : {10, 100, 1000}) {
        for (const int64_t out : {1, 2, 6})
          for (int64_t in = 1; in <= 36; ++in) add(rows, in, out);
        for (const int64_t in : {4, 16, 33})
          for (int64_t out = 1; out <= 20; ++out) add(rows, in, out);
      }
      walk<float>(sizes);
      walk<double>(sizes);
    }
  });
  std::printf("%d failures\n", failures);
  return failures > 0;
}
