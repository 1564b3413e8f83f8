// What the operators (ops.cpp, training.cpp) check their tensors with.
#pragma once

#include <torch/csrc/stable/tensor.h>

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

}  // namespace npu
