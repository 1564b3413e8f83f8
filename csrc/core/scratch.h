// Where a thread's kernels take their scratch from: the heap, or during a loop of calls (training.h) memory that is
// kept, since a third of the time of a small layer goes into malloc and free.
#pragma once

#include <cstddef>

namespace npu {

// `bytes`, a multiple of 64, aligned to a cache line; throws where memory is missing. A thread gives back what it took,
// the last first. Defined once and not here, where every instruction set would compile it.
void* take_scratch(size_t bytes);
void give_back_scratch(void* taken);

// The kept memory of a thread: taken up to `next`. All null: there is none.
struct ScratchStack {
  char *begin, *next, *end;
  size_t missed;  // bytes that the heap had to give
};

// While it lives, this thread's kernels take their scratch from memory that it keeps.
class KeptScratch {
 public:
  KeptScratch();
  ~KeptScratch();
  KeptScratch(const KeptScratch&) = delete;
  KeptScratch& operator=(const KeptScratch&) = delete;

  // While nothing is taken: makes room for all that the heap had to give since the last time.
  void fit();

 private:
  ScratchStack before_;
};

}  // namespace npu
