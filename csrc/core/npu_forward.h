// What the forms of the forward share (npu_forward.cpp, npu_forward_few.h, npu_tiles_forward.cpp); the formulas stand
// in npu_forward.cpp.
#pragma once

#include "../layers/npu.h"
#include "api.h"
#include "panel.h"
#include "vector_math.h"

namespace npu {
namespace NPU_ISA {

// y = exp(P) cos(Q), s = exp(P) sin(Q)
template <typename T>
NPU_INLINE void outputs(typename Simd<T>::Reg p, typename Simd<T>::Reg q, typename Simd<T>::Reg* y,
                        typename Simd<T>::Reg* s) {
  const typename Simd<T>::Reg size = VectorMath<T>::exp(p);
  typename Simd<T>::Reg sine, cosine;
  VectorMath<T>::sincos(q, &sine, &cosine);
  *y = size * cosine;
  *s = size * sine;
}

}  // namespace NPU_ISA
}  // namespace npu
