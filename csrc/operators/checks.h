// What the operators (layers.cpp, ode_adaptive.cpp, train.cpp) check their tensors and sizes with.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace npu {

inline std::string shape_of(const torch::stable::Tensor& t) {
  std::ostringstream text;
  text << "(";
  for (int64_t d = 0; d < t.dim(); ++d) text << (d ? ", " : "") << t.size(d);
  text << (t.dim() == 1 ? ",)" : ")");
  return text.str();
}

template <typename... Words>
void check(bool holds, const Words&... words) {
  if (__builtin_expect(holds, 1)) return;
  std::ostringstream text;
  (text << ... << words);
  throw std::runtime_error(text.str());
}

// Whether t's storage, which somebody may have freed or made smaller, has memory for its elements of so many bytes.
inline void check_storage(const char* op, const char* name, const torch::stable::Tensor& t, size_t element) {
  int64_t bytes = 0, count = t.numel();
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(t.get(), &bytes));
  if (count == 0) return;
  if (__builtin_expect(!t.is_contiguous(), 0)) {
    count = 1;
    for (int64_t d = 0; d < t.dim(); ++d) count += (t.size(d) - 1) * t.stride(d);
  }
  check(t.storage_offset() + count <= bytes / int64_t(element), op, ": ", name, " must have memory for its shape ",
        shape_of(t), ", got a storage of ", bytes, " bytes");
}

// The product of sizes, of which 0 counts as 1; an error if it is too large for an integer.
template <typename... Sizes>
int64_t product(const char* op, Sizes... sizes) {
  int64_t value = 1;
  const bool fits = (!__builtin_mul_overflow(value, std::max<int64_t>(sizes, 1), &value) && ...);
  check(fits, op, ": the sizes are too large");
  return value;
}

}  // namespace npu
