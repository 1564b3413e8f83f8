// Threads for the kernels as the extension brings torch's: each takes at least one chunk of the work, and more as they
// come. They are the standard library's, whose every step the thread sanitizer follows. GCC's OpenMP is not built for
// that sanitizer, which reports races in it that are none.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "core/api.h"

inline std::atomic<int64_t> worker_count{1};

inline npu::Parallel workers(int threads) {
  npu::Parallel parallel;
  parallel.threads = threads;
  worker_count = threads;
  parallel.run = [](int64_t count, npu::Parallel::Body body, void* context) {
    const int64_t threads = std::min<int64_t>(worker_count, count), chunks = std::min(4 * threads, count);
    std::atomic<int64_t> next{threads};
    const auto work = [&](int64_t first) {
      // Relaxed: no order between two chunks that would hide a race from the sanitizer.
      for (int64_t n = first; n < chunks; n = next.fetch_add(1, std::memory_order_relaxed))
        body(count * n / chunks, count * (n + 1) / chunks, context);
    };
    std::vector<std::thread> others;
    for (int64_t n = 1; n < threads; ++n) others.emplace_back(work, n);
    work(0);
    for (std::thread& other : others) other.join();
  };
  return parallel;
}
