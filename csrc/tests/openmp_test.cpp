// OpenMP's threads: each index once, exceptions, and the bits of one thread.
#include "openmp.h"

#include <atomic>
#include <stdexcept>

#include "npu_cases.h"

int main() {
  omp_set_num_threads(3);
  const npu::Parallel parallel = npu::openmp_threads();
  if (parallel.threads != 3) std::printf("FAILED: %d threads\n", parallel.threads), ++failures;
  for (const int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> seen(count);
    parallel.over(count, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) ++seen[n];
    });
    for (const auto& times : seen)
      if (times != 1) std::printf("FAILED: an index %d times\n", times.load()), ++failures;
  }
  bool caught = false;
  try {
    parallel.over(1000, [](int64_t begin, int64_t) {
      if (begin > 0) throw std::runtime_error("as it must");
    });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  if (!caught) std::printf("FAILED: an exception was lost\n"), ++failures;

  const Case<float> c({2, 500, 20, 30, false, true, true, true});
  const auto& kernels = npu::kernels<float>();
  const Results<float> one(c, kernels.npu_forward, kernels.npu_backward, npu::Parallel{});
  if (!one.same_bits(Results<float>(c, kernels.npu_forward, kernels.npu_backward, parallel)))
    std::printf("FAILED: other bits than those of one thread\n"), ++failures;
  std::printf("%d failures\n", failures);
  return failures > 0;
}
