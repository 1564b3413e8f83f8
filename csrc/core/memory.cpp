// What is thrown where memory is missing, which needs none itself; and scratch that a thread keeps between calls.
#include <pthread.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "ode/adaptive_api.h"
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

void* from_heap(size_t bytes) {
  void* const memory = std::aligned_alloc(64, bytes);
  if (memory == nullptr) out_of_memory(bytes);
  return memory;
}

// A large layer's scratch comes from the heap, where malloc costs nothing beside the layer's work; and all scratch does
// with the sanitizers, which watch the ends of each block.
#if defined(NPU_SANITIZED)
constexpr size_t kMaxKept = 0;
#else
constexpr size_t kMaxKept = size_t(1) << 20;
#endif

// A thread's kept memory, handed out up to `next`. Trivial, so that reading it costs no check of its initialisation.
struct Kept {
  char *begin, *next, *end;
  size_t taken, most;  // bytes at once, of the heap too; the most of these up to kMaxKept
};
thread_local Kept kept = {};

// While nothing is taken: makes room for the most that was taken at once.
__attribute__((noinline)) void grow() {
  // Frees the memory where a thread ends. Not a thread_local's destructor: to register one may need memory, and the
  // process ends where there is none.
  static pthread_key_t key;
  static const bool made = pthread_key_create(&key, std::free) == 0;
  if (!made) return;
  char* const memory = static_cast<char*>(from_heap(kept.most));
  if (pthread_setspecific(key, memory) != 0) return std::free(memory);
  std::free(kept.begin);
  kept.begin = kept.next = memory;
  kept.end = memory + kept.most;
}

}  // namespace

void out_of_memory(size_t count, const char* unit) { throw OutOfMemory(count, unit); }

void* more_memory(void* old, size_t bytes) {
  void* found = std::realloc(old, bytes);
  if (found == nullptr) out_of_memory(bytes);
  return found;
}

void* take_scratch(size_t bytes) {
  if (kept.taken == 0 && kept.most > size_t(kept.end - kept.begin)) grow();
  void* found;
  if (size_t(kept.end - kept.next) >= bytes) {
    found = kept.next;
    kept.next += bytes;
  } else {
    found = from_heap(bytes);
  }
  kept.taken += bytes;
  if (kept.taken > kept.most && kept.taken <= kMaxKept) kept.most = kept.taken;
  return found;
}

void give_back_scratch(void* taken, size_t bytes) {
  kept.taken -= bytes;
  const uintptr_t at = uintptr_t(taken);
  if (at >= uintptr_t(kept.begin) && at < uintptr_t(kept.end)) kept.next = static_cast<char*>(taken);
  else std::free(taken);
}

}  // namespace npu
