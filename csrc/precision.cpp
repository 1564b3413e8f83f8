#include "precision.h"

#include <atomic>

namespace {

std::atomic<int (*)()> reader{nullptr};

}  // namespace

int npu::float_terms() {
  int (*const read)() = reader.load(std::memory_order_relaxed);
  return read == nullptr ? 3 : read();
}

void npu::read_float_terms_by(int (*read)()) { reader.store(read, std::memory_order_relaxed); }
