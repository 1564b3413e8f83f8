// What is thrown where memory is missing; it needs none itself.
#include <cstdio>
#include <cstdlib>
#include <new>

#include "ode_adaptive_api.h"

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

}  // namespace

void out_of_memory(size_t count, const char* unit) { throw OutOfMemory(count, unit); }

void* more_memory(void* old, size_t bytes) {
  void* found = std::realloc(old, bytes);
  if (found == nullptr) out_of_memory(bytes);
  return found;
}

}  // namespace npu
