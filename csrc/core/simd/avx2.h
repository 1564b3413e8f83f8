// Registers of AVX2 with fused multiply-add: 256 bits. generic.h says what each function does.
#pragma once

#include <immintrin.h>

#include "simd/generic.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
struct Simd : GenericSimd<T, Simd<T>> {
  using Generic = GenericSimd<T, Simd<T>>;
  using Generic::single;
  using typename Generic::Bits;
  using typename Generic::Reg;
  static constexpr int group_size = single ? 3 : 0;

  static NPU_INLINE Reg set1(T v) {
    if constexpr (single) return (Reg)_mm256_set1_ps(v);
    else return (Reg)_mm256_set1_pd(v);
  }

  static NPU_INLINE Reg fma(Reg a, Reg b, Reg c) {
    if constexpr (single) return (Reg)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    else return (Reg)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
  }

  static NPU_INLINE Reg fma_exact(Reg a, Reg b, Reg c) { return fma(a, b, c); }

  static NPU_INLINE Reg bounded(Reg v, Reg low, Reg high) {
    if constexpr (single) return (Reg)_mm256_max_ps((__m256)low, _mm256_min_ps((__m256)high, (__m256)v));
    else return (Reg)_mm256_max_pd((__m256d)low, _mm256_min_pd((__m256d)high, (__m256d)v));
  }

  static NPU_INLINE Reg lookup(Reg table, Bits index) {
    if constexpr (single) return (Reg)_mm256_permutevar8x32_ps((__m256)table, (__m256i)index);
    (void)index;
    return table;
  }

  // Bit l is set where lane l of x is below 0.
  static NPU_INLINE unsigned negative_bits(Reg x) {
    if constexpr (single) return unsigned(_mm256_movemask_ps((__m256)(x < Generic::zero())));
    else return unsigned(_mm256_movemask_pd((__m256d)(x < Generic::zero())));
  }

  static NPU_INLINE bool any(Bits condition) { return !_mm256_testz_si256((__m256i)condition, (__m256i)condition); }
};

}  // namespace NPU_ISA
}  // namespace npu
