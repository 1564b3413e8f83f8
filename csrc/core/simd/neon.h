// Registers of NEON: 128 bits. generic.h says what each function does.
#pragma once

#include <arm_neon.h>

#include "simd/generic.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
struct Simd : GenericSimd<T, Simd<T>> {
  using Generic = GenericSimd<T, Simd<T>>;
  using Generic::single;
  using typename Generic::Bits;
  using typename Generic::Reg;

  static NPU_INLINE Reg fma(Reg a, Reg b, Reg c) {
    if constexpr (single) return (Reg)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
    else return (Reg)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
  }

  static NPU_INLINE Reg fma_exact(Reg a, Reg b, Reg c) { return fma(a, b, c); }

  static NPU_INLINE Reg bounded(Reg v, Reg low, Reg high) {
    if constexpr (single) return (Reg)vmaxq_f32((float32x4_t)low, vminq_f32((float32x4_t)high, (float32x4_t)v));
    else return (Reg)vmaxq_f64((float64x2_t)low, vminq_f64((float64x2_t)high, (float64x2_t)v));
  }

  static NPU_INLINE bool any(Bits condition) { return vmaxvq_u32((uint32x4_t)condition) != 0; }
};

}  // namespace NPU_ISA
}  // namespace npu
