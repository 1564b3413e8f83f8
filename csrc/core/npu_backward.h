// What the two forms of the backward share (npu_backward_narrow.h, npu_backward_wide.h); the algebra stands in
// npu_backward.cpp.
#pragma once

#include "api.h"
#include "panel.h"
#include "vector_math.h"

namespace npu {
namespace NPU_ISA {

// The weight sums of one model and row group: [part][O][I].
enum Part { kSP, kMQ, kSQ, kMP };
template <bool complex>
constexpr int kParts = complex ? 4 : 2;

// What one row group of one model adds up to.
template <typename T>
struct GroupTask {
  int64_t model, begin, end;  // rows
  const T* gate;              // [I], clamped
  T* sums;                    // [part][O][I], overwritten
  T* gate_sums;               // [I], overwritten: sum_b dr (|x| + eps - 1)
  bool want_spread;           // grad_x and gate_sums
  bool want_sums;
};

}  // namespace NPU_ISA
}  // namespace npu
