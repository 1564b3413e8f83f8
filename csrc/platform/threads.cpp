// How torch's own threads are used (never a second OpenMP runtime beside them).
#include "threads.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>

#include "backoff.h"
#include "chunks.h"

namespace {

npu::Backoff backoff;

// Nanoseconds of CLOCK_MONOTONIC, or that this thread has had a core: CLOCK_THREAD_CPUTIME_ID.
int64_t now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

void run_in_threads(int64_t count, npu::Parallel::Body body, void* context) {
  const int64_t begin = now(CLOCK_MONOTONIC);
  if (backoff.alone()) {  // since a moment ago, in this very call
    body(0, count, context);
    backoff.by_itself(now(CLOCK_MONOTONIC) - begin);
    return;
  }
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), count);
  npu::Chunks chunks(count, threads);
  std::atomic<int64_t> worked{0};
  std::exception_ptr error;  // torch would pass on no more than that there was one
  std::atomic<bool> failed{false};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t thread, int64_t) {
    const int64_t before = now(CLOCK_THREAD_CPUTIME_ID);
    try {
      chunks.take(thread, [&](int64_t from, int64_t to) {
        if (!failed) body(from, to, context);
      });
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
    worked += now(CLOCK_THREAD_CPUTIME_ID) - before;
  });
  if (error) std::rethrow_exception(error);
  backoff.in_threads(now(CLOCK_MONOTONIC) - begin, worked);
}

}  // namespace

npu::TorchThreads::TorchThreads(double multiply_adds) {
  if (multiply_adds < 1.2e6) return;
  const int available = int(torch::stable::get_num_threads());
  if (available <= 1) return;
  if (backoff.alone()) {
    backed_off_at_ = now(CLOCK_MONOTONIC);
    return;
  }
  threads = available;
  run = run_in_threads;
}

npu::TorchThreads::~TorchThreads() {
  if (backed_off_at_ != 0) backoff.by_itself(now(CLOCK_MONOTONIC) - backed_off_at_);
}

// Its name tells the headers that this library was built with; a fast path built with others does not find it.
extern "C" __attribute__((visibility("default"))) void NPU_INTERFACE() {}

// For tests, by ctypes: what work in one thread still has to pay back, in nanoseconds.
extern "C" __attribute__((visibility("default"))) int64_t npu_kernels_thread_debt() { return backoff.debt(); }
