// An allocator for LD_PRELOAD whose n-th allocation fails. Only the calls from the code that
// failing_malloc_watch named count, in any thread; other allocations, such as Python's, always succeed.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

#include <unwind.h>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {

constexpr int kMax = 64;
uintptr_t begins[kMax], ends[kMax];
bool ours[kMax];
int watched = 0;
std::atomic<long> left{0};  // allocations until the one that fails; 0 or less: none will
std::atomic<bool> elsewhere{false}, within{false};
std::atomic<uint64_t> path{0};  // a hash of the places in npu_kernels' own code that the failed allocation came through
thread_local bool armed = false;  // in the thread that called failing_malloc_arm

// The number of the code that is watched and has this address; -1: none has.
int place(uintptr_t at) {
  for (int n = 0; n < watched; ++n)
    if (at >= begins[n] && at < ends[n]) return n;
  return -1;
}

_Unwind_Reason_Code find_ours(_Unwind_Context* frame, void*) {
  const uintptr_t at = _Unwind_GetIP(frame);
  const int n = place(at);
  if (n < 0 || !ours[n]) return _URC_NO_REASON;
  within = true;
  path = (path ^ uint64_t(at)) * 0x100000001b3;  // FNV-1a
  return _URC_NO_REASON;
}

bool fails(const void* caller) {
  if (left.load(std::memory_order_relaxed) <= 0) return false;
  if (place(reinterpret_cast<uintptr_t>(caller)) < 0 || left.fetch_sub(1) != 1) return false;
  elsewhere = !armed;
  _Unwind_Backtrace(find_ours, nullptr);
  return true;
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

#define NPU_FAILS fails(__builtin_return_address(0))

extern "C" {

// The code from begin to end is watched, which is npu_kernels' own or not; false: there is no more room.
bool failing_malloc_watch(uintptr_t begin, uintptr_t end, bool own) {
  if (watched == kMax) return false;
  ours[watched] = own;
  begins[watched] = begin;
  ends[watched++] = end;
  return true;
}

// The n-th allocation from now on fails, and no other.
void failing_malloc_arm(long n) {
  armed = true;
  elsewhere = within = false;
  path = 0;
  left = n;
}

// None fails any more. 0: none did. 1: one did; and 2 more: in another thread; and 4 more: while npu_kernels' own code
// was at work, which had called what asked for memory.
int failing_malloc_disarm() { return left.exchange(0) > 0 ? 0 : 1 + (elsewhere ? 2 : 0) + (within ? 4 : 0); }

// The same number for every allocation that failed in the same place, called the same way.
uint64_t failing_malloc_path() { return path; }

void* malloc(size_t size) { return NPU_FAILS ? nullptr : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return NPU_FAILS ? nullptr : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return NPU_FAILS ? nullptr : __libc_realloc(old, size); }
void* memalign(size_t alignment, size_t size) { return NPU_FAILS ? nullptr : __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return NPU_FAILS ? nullptr : __libc_memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  if (NPU_FAILS) return ENOMEM;
  void* found = __libc_memalign(alignment, size);
  if (found != nullptr) *memory = found;
  return found == nullptr ? ENOMEM : 0;
}
}

void* operator new(size_t size) { return or_throw(NPU_FAILS ? nullptr : __libc_malloc(size)); }
void* operator new[](size_t size) { return or_throw(NPU_FAILS ? nullptr : __libc_malloc(size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return or_throw(NPU_FAILS ? nullptr : __libc_memalign(size_t(alignment), size));
}
