// How the threads of a call share its work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace npu {

// Small chunks of [0, count), taken one by one: a thread that comes late, or shares its core with another process, gets
// fewer. A thread begins with its own part of them: what it wrote in one call lies in its core's cache in the next one.
class Chunks {
 public:
  Chunks(int64_t count, int64_t threads)
      : count_(count),
        parts_(std::max<int64_t>(1, std::min({count, threads, kMaxParts}))),
        chunks_(std::min(kChunksOfAThread * threads, count)) {}

  // What thread number `thread` (0, 1, ...) does: f(begin, end) for each chunk that it gets. All have been taken when
  // this returns. Another thread may still work on one.
  template <typename F>
  void take(int64_t thread, const F& f) {
    for (int64_t n = 0; n < parts_; ++n) {
      const int64_t part = (thread + n) % parts_, end = first(part + 1);
      for (int64_t chunk; (chunk = first(part) + taken_[part].count.fetch_add(1, std::memory_order_relaxed)) < end;)
        f(count_ * chunk / chunks_, count_ * (chunk + 1) / chunks_);
    }
  }

 private:
  static constexpr int64_t kMaxParts = 64, kChunksOfAThread = 4;
  struct alignas(64) Taken {  // a cache line each
    std::atomic<int64_t> count{0};
  };

  int64_t first(int64_t part) const { return chunks_ * part / parts_; }

  const int64_t count_, parts_, chunks_;
  Taken taken_[kMaxParts];
};

}  // namespace npu
