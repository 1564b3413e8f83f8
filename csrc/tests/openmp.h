// OpenMP's threads for the kernels, as the extension brings torch's.
#pragma once

#include <omp.h>

#include <algorithm>

#include "core/api.h"

inline npu::Parallel openmp(int threads) {
  npu::Parallel parallel;
  parallel.threads = threads;
  parallel.run = [](int64_t count, npu::Parallel::Body body, void* context) {
#pragma omp parallel
    {
      const int64_t share = (count + omp_get_num_threads() - 1) / omp_get_num_threads();
      const int64_t begin = std::min<int64_t>(count, omp_get_thread_num() * share);
      const int64_t end = std::min<int64_t>(count, begin + share);
      if (begin < end) body(begin, end, context);
    }
  };
  omp_set_num_threads(threads);
  return parallel;
}
