// How torch's own threads are used (never a second OpenMP runtime beside them).
#include "threads.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>

namespace {

// Nanoseconds of CLOCK_MONOTONIC, or that this thread has had a core: CLOCK_THREAD_CPUTIME_ID.
int64_t now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Torch's threads spin until all have arrived. Where other processes want the cores, so that two threads get one, or
// half of one, each call takes whole turns of the scheduler, tens of milliseconds. After a call that took longer than
// its work would have taken alone, the callers work alone for eight times as long: a hiccup costs little then, and a
// collapse a ninth of the time at most.
constexpr int64_t kSurplus = 2'000'000, kTimes = 8, kMost = 200'000'000;
std::atomic<int64_t> alone_until{0};

void run_in_threads(int64_t count, npu::Parallel::Body body, void* context) {
  // Small pieces, taken one by one: a thread that comes late, or shares its core with another process, gets fewer.
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), count);
  const int64_t pieces = std::min(4 * threads, count);
  std::atomic<int64_t> next{0}, worked{0};
  const int64_t begin = now(CLOCK_MONOTONIC);
  std::exception_ptr error;  // torch would pass on no more than that there was one
  std::atomic<bool> failed{false};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    const int64_t before = now(CLOCK_THREAD_CPUTIME_ID);
    try {
      for (int64_t n; !failed && (n = next.fetch_add(1, std::memory_order_relaxed)) < pieces;)
        body(count * n / pieces, count * (n + 1) / pieces, context);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
    worked += now(CLOCK_THREAD_CPUTIME_ID) - before;
  });
  if (error) std::rethrow_exception(error);
  const int64_t end = now(CLOCK_MONOTONIC);
  if (end - begin > worked + kSurplus) alone_until = end + std::min(kTimes * (end - begin), kMost);
}

}  // namespace

npu::Parallel npu::torch_threads(double multiply_adds) {
  Parallel parallel;
  if (multiply_adds < 1.2e6 || now(CLOCK_MONOTONIC) < alone_until) return parallel;
  parallel.threads = int(torch::stable::get_num_threads());
  parallel.run = run_in_threads;
  return parallel;
}
