// What the forms of the forward share (npu/forward.cpp, npu/forward_few_outputs.cpp, npu/tiled_forward.cpp); the
// formulas stand in npu/forward.cpp.
#pragma once

#include "api.h"
#include "layers/npu.h"
#include "npu/gate.h"
#include "npu/limits.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

// y = exp(P) cos(Q), s = exp(P) sin(Q)
template <typename T>
NPU_INLINE void finish_outputs(typename Simd<T>::Reg p, typename Simd<T>::Reg q, typename Simd<T>::Reg* y,
                               typename Simd<T>::Reg* s) {
  const typename Simd<T>::Reg size = VectorMath<T>::exp(p);
  typename Simd<T>::Reg sine, cosine;
  VectorMath<T>::sincos(q, &sine, &cosine);
  *y = size * cosine;
  *s = size * sine;
}

// npu/forward_few_outputs.cpp
template <typename T>
bool npu_forward_few_outputs(const NpuForward<T>& f, const Parallel& parallel);

}  // namespace NPU_ISA
}  // namespace npu
