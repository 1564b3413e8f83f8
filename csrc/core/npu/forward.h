// What the forms of the forward share (npu/forward.cpp, npu/forward_few_outs.cpp, npu/tiled_forward.cpp); the formulas
// stand in npu/forward.cpp.
#pragma once

#include "api.h"
#include "layers/npu.h"
#include "npu/gate.h"
#include "panel.h"

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

// Layers with many inputs and one or two outs have kernels of their own (npu/forward_few_outs.cpp), which gain only
// with registers of 512 bits.
#if defined(__AVX512F__)
constexpr int kFewOuts = 2;
#else
constexpr int kFewOuts = 0;
#endif
template <typename T>
bool has_few_outs(const NpuInputs<T>& in) {
  return in.out > 0 && in.out <= kFewOuts && in.in >= in.out * Simd<T>::width;
}
template <typename T>
void npu_forward_few_outs(const NpuForward<T>& f, const Parallel& parallel);

}  // namespace NPU_ISA
}  // namespace npu
