// OpenMP's threads for the core, in a C++ program without torch. Beside torch it is platform/threads.h: torch brings an
// OpenMP runtime of its own, and two of them in one process wait for each other's threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <exception>

#include "api.h"

namespace npu {

// As many as OMP_NUM_THREADS or omp_set_num_threads says when a kernel is called.
inline Parallel openmp_threads() {
  Parallel parallel;
  parallel.threads = omp_get_max_threads();
  parallel.run = [](int64_t count, Parallel::Body body, void* context) {
    const int64_t chunks = std::min<int64_t>(4 * omp_get_max_threads(), count);
    std::exception_ptr thrown;  // no exception may leave a parallel region
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n) {
      try {
        body(count * n / chunks, count * (n + 1) / chunks, context);
      } catch (...) {
#pragma omp critical(npu_openmp_threads)
        thrown = std::current_exception();
      }
    }
    if (thrown) std::rethrow_exception(thrown);
  };
  return parallel;
}

}  // namespace npu
