// Registers of AVX-512: 512 bits, masks in registers of their own. generic.h says what each function does.
#pragma once

#include <immintrin.h>

#include "simd/generic.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
struct Simd : GenericSimd<T, Simd<T>> {
  using Generic = GenericSimd<T, Simd<T>>;
  using Generic::kSignBit;
  using Generic::load;
  using Generic::set1_bits;
  using Generic::single;
  using Generic::store;
  using Generic::width;
  using typename Generic::Bits;
  using typename Generic::Int;
  using typename Generic::Mask;
  using typename Generic::Reg;
  static constexpr bool stores_masked = true;
  static constexpr int group_size = single ? 4 : 3;
  static constexpr bool sums_pairs = single;
  static constexpr int max_zipped = single ? 8 : 5;

  static NPU_INLINE Reg set1(T v) {
    if constexpr (single) return (Reg)_mm512_set1_ps(v);
    else return (Reg)_mm512_set1_pd(v);
  }

  static NPU_INLINE Reg load_first(const T* p, int n) {
    if (n == width) return load(p);
    if constexpr (single) return (Reg)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
    else return (Reg)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
  }

  static NPU_INLINE void store_first(T* p, Reg r, int n) {
    if (n == width) return store(p, r);
    if constexpr (single) _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)r);
    else _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)r);
  }

  template <int n>
  static NPU_INLINE void store_first(T* p, Reg r) {
    if constexpr (single && n < width / 2)
      return _mm256_mask_storeu_ps(p, __mmask8((1u << n) - 1), _mm512_castps512_ps256((__m512)r));
    store_first(p, r, n);
  }

  static NPU_INLINE Reg fma(Reg a, Reg b, Reg c) {
    if constexpr (single) return (Reg)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
    else return (Reg)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
  }

  static NPU_INLINE Reg fma_exact(Reg a, Reg b, Reg c) { return fma(a, b, c); }

  // acc += a * b. In the inner loop of a product GCC would rather overwrite a factor, and then move or spill sums.
  static NPU_INLINE void accumulate(Reg& acc, Reg a, Reg b) {
    if constexpr (single) __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    else __asm__("vfmadd231pd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  }

  static NPU_INLINE Reg select_odd(Bits n, Reg a, Reg b) {
    const __m512i bits = (__m512i)n;
    if constexpr (single)
      return (Reg)_mm512_mask_blend_ps(_mm512_test_epi32_mask(bits, _mm512_set1_epi32(1)), (__m512)b, (__m512)a);
    else return (Reg)_mm512_mask_blend_pd(_mm512_test_epi64_mask(bits, _mm512_set1_epi64(1)), (__m512d)b, (__m512d)a);
  }

  static NPU_INLINE Reg negate_where(Bits flip, Reg v) {
    constexpr int kXorOfAnd = 0x78;  // first ^ (second & third), as the truth table of one instruction
    return (Reg)_mm512_ternarylogic_epi64((__m512i)v, (__m512i)flip, (__m512i)set1_bits(kSignBit), kXorOfAnd);
  }

  static NPU_INLINE Reg bounded(Reg v, Reg low, Reg high) {
    if constexpr (single) return (Reg)_mm512_max_ps((__m512)low, _mm512_min_ps((__m512)high, (__m512)v));
    else return (Reg)_mm512_max_pd((__m512d)low, _mm512_min_pd((__m512d)high, (__m512d)v));
  }

  // a 2^floor(n), rounded once.
  static NPU_INLINE Reg scale(Reg a, Reg n) {
    if constexpr (single) return (Reg)_mm512_scalef_ps((__m512)a, (__m512)n);
    else return (Reg)_mm512_scalef_pd((__m512d)a, (__m512d)n);
  }

  // a = 2^e m, m in [3/4, 3/2). inf gives e = inf and m = 1, nan and numbers below 0 give m = nan.
  static NPU_INLINE void split(Reg a, Reg* e, Reg* m) {
    if constexpr (single) {
      const __m512 part = _mm512_getmant_ps((__m512)a, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
      const __m512 exponent = _mm512_getexp_ps((__m512)a), one = _mm512_set1_ps(1);
      *e = (Reg)_mm512_mask_add_ps(exponent, _mm512_cmp_ps_mask(part, one, _CMP_LT_OQ), exponent, one);
      *m = (Reg)part;
    } else {
      const __m512d part = _mm512_getmant_pd((__m512d)a, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
      const __m512d exponent = _mm512_getexp_pd((__m512d)a), one = _mm512_set1_pd(1);
      *e = (Reg)_mm512_mask_add_pd(exponent, _mm512_cmp_pd_mask(part, one, _CMP_LT_OQ), exponent, one);
      *m = (Reg)part;
    }
  }

  // Lane l is table[index[l] % (2 * width)].
  static NPU_INLINE Reg lookup_pair(const T* table, Bits index) {
    if constexpr (single)
      return (Reg)_mm512_permutex2var_ps(_mm512_loadu_ps(table), (__m512i)index, _mm512_loadu_ps(table + width));
    else return (Reg)_mm512_permutex2var_pd(_mm512_loadu_pd(table), (__m512i)index, _mm512_loadu_pd(table + width));
  }

  static NPU_INLINE Reg with_sign_of(Reg v, Reg x) {
    const Reg flipped = negate_where((Bits)x, v);
    if constexpr (single) {
      const __mmask16 other = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_EQ_UQ);
      return (Reg)_mm512_mask_mul_ps((__m512)flipped, other, (__m512)x, (__m512)v);
    } else {
      const __mmask8 other = _mm512_cmp_pd_mask((__m512d)x, _mm512_setzero_pd(), _CMP_EQ_UQ);
      return (Reg)_mm512_mask_mul_pd((__m512d)flipped, other, (__m512d)x, (__m512d)v);
    }
  }

  static NPU_INLINE bool any_less(Reg a, Reg b) {
    if constexpr (single) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ) != 0;
    else return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LT_OQ) != 0;
  }

  static NPU_INLINE bool any_equal(Reg a, Reg b) {
    if constexpr (single) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ) != 0;
    else return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_EQ_OQ) != 0;
  }

  static NPU_INLINE bool store_negative(Mask* mask, Reg x) {
    if constexpr (single) *mask = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_LT_OQ);
    else *mask = _mm512_cmp_pd_mask((__m512d)x, _mm512_setzero_pd(), _CMP_LT_OQ);
    return *mask != 0;
  }

  static NPU_INLINE Bits mark_negative(Bits marks, Reg x, int n) {
    static constexpr Int kBit[] = {1, 2, 4, 8};  // a load from memory; a shift's result would have to be moved
    const __m512i all = (__m512i)marks, more = (__m512i)set1_bits(kBit[n]);
    if constexpr (single)
      return (Bits)_mm512_mask_or_epi32(all, _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_LT_OQ), all, more);
    else
      return (Bits)_mm512_mask_or_epi64(all, _mm512_cmp_pd_mask((__m512d)x, _mm512_setzero_pd(), _CMP_LT_OQ), all,
                                        more);
  }

  static NPU_INLINE bool any_mark(Bits marks) { return _mm512_test_epi64_mask((__m512i)marks, (__m512i)marks) != 0; }

  // to = from. For an inner loop: GCC would load by way of a scalar register.
  static NPU_INLINE void load_mask(Mask& to, const Mask& from) {
    if constexpr (single) __asm__("kmovw %1, %0" : "=Yk"(to) : "m"(from));
    else __asm__("kmovb %1, %0" : "=Yk"(to) : "m"(from));
  }

  static NPU_INLINE Reg add_masked(Reg acc, const Mask& mask, Reg v) {
    if constexpr (single) return (Reg)_mm512_mask_add_ps((__m512)acc, mask, (__m512)acc, (__m512)v);
    else return (Reg)_mm512_mask_add_pd((__m512d)acc, mask, (__m512d)acc, (__m512d)v);
  }

  static NPU_INLINE Reg multiply_masked(Reg acc, const Mask& mask, Reg v) {
    if constexpr (single) return (Reg)_mm512_mask_mul_ps((__m512)acc, mask, (__m512)acc, (__m512)v);
    else return (Reg)_mm512_mask_mul_pd((__m512d)acc, mask, (__m512d)acc, (__m512d)v);
  }

  static NPU_INLINE Reg lookup(Reg table, Bits index) {
    if constexpr (single) return (Reg)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
    else return (Reg)_mm512_permutexvar_pd((__m512i)index, (__m512d)table);
  }

  static NPU_INLINE Reg partial_sums(const T* terms, int64_t stride, int count) {
    constexpr Mask kHas[4] = {Mask(0xAAAA), Mask(0xCCCC), Mask(0xF0F0), Mask(0xFF00)};
    Reg sums;
    if constexpr (single) sums = (Reg)_mm512_maskz_mov_ps(kHas[0], (__m512)set1(terms[0]));
    else sums = (Reg)_mm512_maskz_mov_pd(kHas[0], (__m512d)set1(terms[0]));
    for (int j = 1; j < count; ++j) sums = add_masked(sums, kHas[j], set1(terms[j * stride]));
    return sums;
  }

  static NPU_INLINE Reg pair_sums(Reg terms) {
    const __m512 t = (__m512)terms, both = _mm512_add_ps(t, _mm512_permute_ps(t, 0xB1));
    return (Reg)_mm512_mask_permute_ps(_mm512_maskz_permute_ps(0x6666, t, 0x10), 0x8888, both, 0);
  }

  static NPU_INLINE Reg partial_sums_of_pairs(const T* pairs, const T* terms) {
    const Reg sums = (Reg)_mm512_broadcast_f32x4(_mm_loadu_ps(pairs));
    return add_masked(add_masked(sums, 0xF0F0, set1(terms[2])), 0xFF00, set1(terms[3]));
  }
};

}  // namespace NPU_ISA
}  // namespace npu
