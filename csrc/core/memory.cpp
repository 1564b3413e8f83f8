// What is thrown where memory is missing, which needs none itself; and scratch that is kept between calls.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "ode_adaptive_api.h"
#include "scratch.h"

namespace npu {
namespace {

class OutOfMemory : public std::bad_alloc {
 public:
  OutOfMemory(size_t count, const char* unit) {
    const char* text = count == 0 ? "npu_kernels: out of memory" : "npu_kernels: out of memory: cannot allocate %zu %s";
    std::snprintf(text_, sizeof text_, text, count, unit);
  }
  const char* what() const noexcept override { return text_; }

 private:
  char text_[96];
};

thread_local ScratchStack stack = {};

void* from_heap(size_t bytes) {
  void* const memory = std::aligned_alloc(64, bytes);
  if (memory == nullptr) out_of_memory(bytes);
  return memory;
}

}  // namespace

void out_of_memory(size_t count, const char* unit) { throw OutOfMemory(count, unit); }

void* more_memory(void* old, size_t bytes) {
  void* found = std::realloc(old, bytes);
  if (found == nullptr) out_of_memory(bytes);
  return found;
}

void* take_scratch(size_t bytes) {
  if (size_t(stack.end - stack.next) < bytes) {
    stack.missed += bytes;
    return from_heap(bytes);
  }
  char* const found = stack.next;
  stack.next += bytes;
  return found;
}

void give_back_scratch(void* taken) {
  const uintptr_t at = uintptr_t(taken);
  if (at >= uintptr_t(stack.begin) && at < uintptr_t(stack.end)) stack.next = static_cast<char*>(taken);
  else std::free(taken);
}

KeptScratch::KeptScratch() : before_(stack) { stack = {}; }
KeptScratch::~KeptScratch() {
  std::free(stack.begin);
  stack = before_;
}

void KeptScratch::fit() {
  if (stack.missed == 0) return;
  // What the heap gave is at least what is needed at once. A large layer's scratch stays there, since malloc costs
  // nothing beside its work; and all of it with the sanitizers, which watch the ends of each piece.
  constexpr size_t kMost = size_t(1) << 22;
#if defined(NPU_SANITIZED)
  const size_t size = kMost + 1;
#else
  const size_t size = size_t(stack.end - stack.begin) + stack.missed;
#endif
  stack.missed = 0;
  if (size > kMost) return;
  char* const memory = static_cast<char*>(from_heap(size));
  std::free(stack.begin);
  stack = {memory, memory, memory + size, 0};
}

}  // namespace npu
