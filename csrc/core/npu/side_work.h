// Vector work that is done between tile products. The tile unit works for itself: while it multiplies, the vector units
// are free, but a processor looks only some hundreds of instructions ahead. So the work is cut into slices of some
// hundred instructions, and a product takes slices between its instructions (npu/tiles.h).
#pragma once

#include "panel.h"

namespace npu {
namespace NPU_ISA {

// A job has a next(), which does its next slice. Work that was added before products is done when finish() returns.
class SideWork {
 public:
  // The next `count` slices of a job.
  template <typename Job>
  void add(Job& job, int64_t count) {
    if (count <= 0) return;
    parts_[end_++] = {[](void* of) { static_cast<Job*>(of)->next(); }, &job, count};
    waiting_ += count;
  }

  // Those of a job's `count` slices that are due in the i-th of so many steps.
  template <typename Job>
  void add_share(Job& job, int64_t count, int64_t i, int64_t steps) {
    add(job, count * (i + 1) / steps - count * i / steps);
  }

  // Before products that call step() so many times: spreads what waits over them.
  void spread_over(int64_t steps) {
    rate_ = steps > 0 ? (waiting_ * kWhole + steps - 1) / steps : 0;
    due_ = 0;
  }

  NPU_INLINE void step() {
    for (due_ += rate_; due_ >= kWhole && waiting_ > 0; due_ -= kWhole) next();
  }

  // All that waits.
  void finish() {
    while (waiting_ > 0) next();
    begin_ = end_ = 0;
  }

 private:
  static constexpr int kMaxParts = 4;
  static constexpr int64_t kWhole = 256;
  struct Part {
    void (*next)(void* job);
    void* job;
    int64_t count;
  };

  NPU_NOINLINE void next() {
    Part& part = parts_[begin_];
    part.next(part.job);
    --waiting_;
    if (--part.count == 0) ++begin_;
  }

  Part parts_[kMaxParts];
  int begin_ = 0, end_ = 0;
  int64_t waiting_ = 0, rate_ = 0, due_ = 0;
};

// Brings memory to the second-level cache before it is needed. A slice is a kibibyte.
class Fetcher {
 public:
  // So many pieces of `count` values, a kibibyte or several each, whose beginnings lie `stride` values apart.
  template <typename T>
  void begin(const T* from, int64_t count, int64_t pieces = 1, int64_t stride = 0) {
    piece_ = reinterpret_cast<const char*>(from);
    size_ = count * int64_t(sizeof(T)), pieces_ = pieces, stride_ = stride * int64_t(sizeof(T));
    at_ = 0;
  }
  int64_t slices() const { return pieces_ * size_ / kSlice; }

  void next() {
    constexpr int kReadSoon = 2;
    for (const int64_t end = at_ + kSlice; at_ < end; at_ += 64) __builtin_prefetch(piece_ + at_, 0, kReadSoon);
    if (at_ == size_) at_ = 0, piece_ += stride_;
  }

 private:
  static constexpr int64_t kSlice = 1024;
  const char* piece_ = nullptr;
  int64_t size_ = 0, pieces_ = 0, stride_ = 0, at_ = 0;
};

}  // namespace NPU_ISA
}  // namespace npu
