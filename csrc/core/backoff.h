// When a call should work in one thread: after an earlier call has waited for threads that had no core.
//
// Torch's threads spin until all have arrived. If other processes use the cores, a call in threads takes whole
// turns of the scheduler: tens of milliseconds for work of a tenth of one. The time that was lost is a debt. Work in
// one thread pays it back, kTimes over. Only such work counts, not the time that passes: otherwise other operators
// between the calls would clear the debt. So a single delay costs little, and a lasting one adds at most a kTimes-th to
// the time that the work takes in one thread, as long as it loses less than kMax / kTimes each time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace npu {

// Times are in nanoseconds. Several callers at once share one debt.
class Backoff {
 public:
  static constexpr int64_t kTimes = 8, kMax = 1'000'000'000;

  // Whether to work alone now.
  bool alone() const { return debt_.load(std::memory_order_relaxed) > 0; }
  int64_t debt() const { return debt_.load(std::memory_order_relaxed); }

  // A call in threads took `wall`, in which all threads together had a core for `worked`: alone it would have taken no
  // longer than that.
  void in_threads(int64_t wall, int64_t worked) {
    const int64_t lost = wall - worked;
    if (lost <= kUnnoticed + worked) return;
    change([&](int64_t debt) { return std::min(kMax, std::max(debt, kTimes * lost)); });
  }

  // So much work was done alone.
  void by_itself(int64_t worked) {
    change([&](int64_t debt) { return std::max<int64_t>(0, debt - worked); });
  }

 private:
  // The time that undisturbed threads lose, to be woken and to meet.
  static constexpr int64_t kUnnoticed = 200'000;

  template <typename F>
  void change(const F& f) {
    int64_t debt = debt_.load(std::memory_order_relaxed);
    while (!debt_.compare_exchange_weak(debt, f(debt), std::memory_order_relaxed)) {
    }
  }

  std::atomic<int64_t> debt_{0};
};

}  // namespace npu
