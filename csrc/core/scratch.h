// Where a thread's kernels take their scratch from: memory that the thread keeps, or the heap. malloc and free would
// take a tenth of the time of a layer of 100 inputs, and a third of that of a smaller one.
#pragma once

#include <cstddef>

namespace npu {

// `bytes`, a multiple of 64, aligned to a cache line; throws where memory is missing. A thread gives back what it took,
// the last first. Defined once and not here, where every instruction set would compile it.
void* take_scratch(size_t bytes);
void give_back_scratch(void* taken, size_t bytes);

}  // namespace npu
