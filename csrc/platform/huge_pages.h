// Huge pages for large results. A result of tens of megabytes lies on pages that the system has to find and clear while
// a kernel writes it, one for each 4 KiB: this takes several times as long as to write them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace npu {

constexpr size_t kMinForHugePages = size_t(8) << 20;  // bytes; the call takes a part in a thousand of writing these

// Asks for huge pages under a result of at least so many bytes that nobody has written yet. Systems that have none, or
// use them everywhere, do nothing.
inline void want_huge_pages(void* result, size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 4096;  // the call takes whole pages
  const uintptr_t begin = (uintptr_t(result) + kPage - 1) / kPage * kPage,
                  end = (uintptr_t(result) + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)result, (void)bytes;
#endif
}

}  // namespace npu
