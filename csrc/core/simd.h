// Vectors of one instruction set, for float and double.
//
// This header is compiled once per instruction set (see dispatch.cpp); NPU_ISA names the namespace, so that the linker
// can never merge code of two instruction sets. Arithmetic uses the compilers' vector extensions (a + b on registers);
// only what these lack (fused multiply-add, masks, partial loads) is written per instruction set.
//
//   Simd<T>::width   lanes of a register
//   Reg, Bits        a register of T, and of integers of the same size
//   Mask             how the mask of one register lies in memory: a bit a lane with AVX-512, otherwise a lane of bits
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(NPU_USE_NEON)
#include <arm_neon.h>
#endif

#include "simd_types.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
struct Simd {
  using Reg = typename SimdTypes<T>::Reg;
  using Bits = typename SimdTypes<T>::Bits;
  using UnsignedBits = typename SimdTypes<T>::UnsignedBits;
  using Int = typename SimdTypes<T>::Int;
  using Mask = typename SimdTypes<T>::Mask;
  static constexpr int width = NPU_VECTOR_BYTES / sizeof(T);
  static constexpr bool single = std::is_same<T, float>::value;
  static constexpr Int kSignBit = std::numeric_limits<Int>::min();

  static NPU_INLINE Reg zero() { return Reg{}; }

  static NPU_INLINE Reg set1(T v) {
#if defined(__AVX512F__)
    if constexpr (single) return (Reg)_mm512_set1_ps(v);
    else return (Reg)_mm512_set1_pd(v);
#elif defined(__AVX2__)
    if constexpr (single) return (Reg)_mm256_set1_ps(v);
    else return (Reg)_mm256_set1_pd(v);
#else
    Reg r;
    for (int l = 0; l < width; ++l) r[l] = v;
    return r;
#endif
  }

  static NPU_INLINE Reg load(const T* p) {
    Reg r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  static NPU_INLINE void store(T* p, Reg r) { std::memcpy(p, &r, sizeof r); }

#if defined(__AVX512F__)
  static constexpr bool stores_masked = true;
#else
  static constexpr bool stores_masked = false;
#endif
  // The first n <= width lanes; the others read as zero. Never touches memory behind p + n.
  static NPU_INLINE Reg load_first(const T* p, int n) {
    if (n == width) return load(p);
#if defined(__AVX512F__)
    if constexpr (single) return (Reg)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
    else return (Reg)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
#else
    T lanes[width] = {};
    for (int l = 0; l < n; ++l) lanes[l] = p[l];
    return load(lanes);
#endif
  }
  static NPU_INLINE void store_first(T* p, Reg r, int n) {
    if (n == width) return store(p, r);
#if defined(__AVX512F__)
    if constexpr (single) _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)r);
    else _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)r);
#else
    T lanes[width];
    store(lanes, r);
    for (int l = 0; l < n; ++l) p[l] = lanes[l];
#endif
  }

  // The same for a number that is known: of a shorter register, which crosses fewer cache lines.
  template <int n>
  static NPU_INLINE void store_first(T* p, Reg r) {
#if defined(__AVX512F__)
    if constexpr (single && n < width / 2)
      return _mm256_mask_storeu_ps(p, __mmask8((1u << n) - 1), _mm512_castps512_ps256((__m512)r));
#endif
    store_first(p, r, n);
  }

  // a * b + c; one rounding where the instruction set has it.
  static NPU_INLINE Reg fma(Reg a, Reg b, Reg c) {
#if defined(__AVX512F__)
    if constexpr (single) return (Reg)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
    else return (Reg)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
    if constexpr (single) return (Reg)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    else return (Reg)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(NPU_USE_NEON)
    if constexpr (single) return (Reg)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
    else return (Reg)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
  }

  // acc += a * b. In the inner loop of a product GCC would rather overwrite a factor, and then move or spill sums.
  static NPU_INLINE void accumulate(Reg& acc, Reg a, Reg b) {
#if defined(__AVX512F__)
    if constexpr (single) __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    else __asm__("vfmadd231pd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
#else
    acc = fma(a, b, acc);
#endif
  }

  // a * b + c with one rounding on every instruction set: range reductions are wrong without it.
  static NPU_INLINE Reg fma_exact(Reg a, Reg b, Reg c) {
#if defined(__AVX2__) || defined(__AVX512F__) || defined(NPU_USE_NEON)
    return fma(a, b, c);
#else
    Reg r;
    for (int l = 0; l < width; ++l) r[l] = std::fma(a[l], b[l], c[l]);
    return r;
#endif
  }

  static NPU_INLINE Bits set1_bits(Int v) { return Bits{} + v; }
  static NPU_INLINE Reg select(Bits condition, Reg a, Reg b) { return condition ? a : b; }
  // a where n is odd, b where it is even.
  static NPU_INLINE Reg select_odd(Bits n, Reg a, Reg b) {
#if defined(__AVX512F__)
    const __m512i bits = (__m512i)n;
    if constexpr (single)
      return (Reg)_mm512_mask_blend_ps(_mm512_test_epi32_mask(bits, _mm512_set1_epi32(1)), (__m512)b, (__m512)a);
    else return (Reg)_mm512_mask_blend_pd(_mm512_test_epi64_mask(bits, _mm512_set1_epi64(1)), (__m512d)b, (__m512d)a);
#else
    return select((n & set1_bits(1)) != set1_bits(0), a, b);
#endif
  }
  // v, negated where the highest bit of `flip` is set.
  static NPU_INLINE Reg negate_where(Bits flip, Reg v) {
#if defined(__AVX512F__)
    constexpr int kXorOfAnd = 0x78;  // first ^ (second & third), as the truth table of one instruction
    return (Reg)_mm512_ternarylogic_epi64((__m512i)v, (__m512i)flip, (__m512i)set1_bits(kSignBit), kXorOfAnd);
#else
    return (Reg)((Bits)v ^ (flip & set1_bits(kSignBit)));
#endif
  }
  // v within [low, high]; nan stays nan.
  static NPU_INLINE Reg bounded(Reg v, Reg low, Reg high) {
#if defined(__AVX512F__)
    if constexpr (single) return (Reg)_mm512_max_ps((__m512)low, _mm512_min_ps((__m512)high, (__m512)v));
    else return (Reg)_mm512_max_pd((__m512d)low, _mm512_min_pd((__m512d)high, (__m512d)v));
#elif defined(__AVX2__)
    if constexpr (single) return (Reg)_mm256_max_ps((__m256)low, _mm256_min_ps((__m256)high, (__m256)v));
    else return (Reg)_mm256_max_pd((__m256d)low, _mm256_min_pd((__m256d)high, (__m256d)v));
#elif defined(NPU_USE_NEON)
    if constexpr (single) return (Reg)vmaxq_f32((float32x4_t)low, vminq_f32((float32x4_t)high, (float32x4_t)v));
    else return (Reg)vmaxq_f64((float64x2_t)low, vminq_f64((float64x2_t)high, (float64x2_t)v));
#else
    v = select(v > high, high, v);
    return select(v < low, low, v);
#endif
  }
#if defined(__AVX512F__)
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
#endif
  // v where x > 0, -v where x < 0, x v at 0 and nan.
  static NPU_INLINE Reg with_sign_of(Reg v, Reg x) {
#if defined(__AVX512F__)
    const Reg flipped = negate_where((Bits)x, v);
    if constexpr (single) {
      const __mmask16 other = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_EQ_UQ);
      return (Reg)_mm512_mask_mul_ps((__m512)flipped, other, (__m512)x, (__m512)v);
    } else {
      const __mmask8 other = _mm512_cmp_pd_mask((__m512d)x, _mm512_setzero_pd(), _CMP_EQ_UQ);
      return (Reg)_mm512_mask_mul_pd((__m512d)flipped, other, (__m512d)x, (__m512d)v);
    }
#else
    return select(x > zero(), v, select(x < zero(), -v, x * v));
#endif
  }
  static NPU_INLINE Reg abs(Reg a) { return (Reg)((Bits)a & set1_bits(~kSignBit)); }

  // Whether a < b, or a == b, in any lane. As masks: of a vector of conditions the compiler makes a masked load of
  // ones. It costs some 10 ns where the mask is empty and nothing has touched the page of the ones yet.
  static NPU_INLINE bool any_less(Reg a, Reg b) {
#if defined(__AVX512F__)
    if constexpr (single) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ) != 0;
    else return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LT_OQ) != 0;
#else
    return any(a < b);
#endif
  }
  static NPU_INLINE bool any_equal(Reg a, Reg b) {
#if defined(__AVX512F__)
    if constexpr (single) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ) != 0;
    else return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_EQ_OQ) != 0;
#else
    return any(a == b);
#endif
  }

  // Stores the mask of x < 0 and returns whether any lane has it. -0 and nan are not negative.
  static NPU_INLINE bool store_negative(Mask* mask, Reg x) {
#if defined(__AVX512F__)
    if constexpr (single) *mask = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_LT_OQ);
    else *mask = _mm512_cmp_pd_mask((__m512d)x, _mm512_setzero_pd(), _CMP_LT_OQ);
    return *mask != 0;
#else
    const Bits negative = x < zero();
    std::memcpy(mask->lane, &negative, sizeof negative);
    return any(negative);
#endif
  }

  // `marks`, with bit n set where x < 0. n is below 4: one of a group (group_size).
  static NPU_INLINE Bits mark_negative(Bits marks, Reg x, int n) {
    static constexpr Int kBit[] = {1, 2, 4, 8};  // a load from memory; a shift's result would have to be moved
#if defined(__AVX512F__)
    const __m512i all = (__m512i)marks, more = (__m512i)set1_bits(kBit[n]);
    if constexpr (single)
      return (Bits)_mm512_mask_or_epi32(all, _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_LT_OQ), all, more);
    else
      return (Bits)_mm512_mask_or_epi64(all, _mm512_cmp_pd_mask((__m512d)x, _mm512_setzero_pd(), _CMP_LT_OQ), all,
                                        more);
#else
    return marks | ((x < zero()) & set1_bits(kBit[n]));
#endif
  }
  // Whether any lane has any mark.
  static NPU_INLINE bool any_mark(Bits marks) {
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)marks, (__m512i)marks) != 0;
#else
    return any(marks);
#endif
  }

  // to = from. For an inner loop: GCC would load by way of a scalar register.
  static NPU_INLINE void load_mask(Mask& to, const Mask& from) {
#if defined(__AVX512F__)
    if constexpr (single) __asm__("kmovw %1, %0" : "=Yk"(to) : "m"(from));
    else __asm__("kmovb %1, %0" : "=Yk"(to) : "m"(from));
#else
    to = from;
#endif
  }

  // acc + v in the lanes of the mask, acc in the others.
  static NPU_INLINE Reg add_masked(Reg acc, const Mask& mask, Reg v) {
#if defined(__AVX512F__)
    if constexpr (single) return (Reg)_mm512_mask_add_ps((__m512)acc, mask, (__m512)acc, (__m512)v);
    else return (Reg)_mm512_mask_add_pd((__m512d)acc, mask, (__m512d)acc, (__m512d)v);
#else
    return acc + (Reg)(lanes(mask) & (Bits)v);
#endif
  }

  // acc * v in the lanes of the mask, acc in the others.
  static NPU_INLINE Reg multiply_masked(Reg acc, const Mask& mask, Reg v) {
#if defined(__AVX512F__)
    if constexpr (single) return (Reg)_mm512_mask_mul_ps((__m512)acc, mask, (__m512)acc, (__m512)v);
    else return (Reg)_mm512_mask_mul_pd((__m512d)acc, mask, (__m512d)acc, (__m512d)v);
#else
    return acc * select(lanes(mask), v, set1(1));
#endif
  }

  // Inputs whose signs select one entry of a register of partial sums (2^group_size <= width, with a permute by lane).
  // 0: the instruction set has no such permute, or (NEON) one of so few lanes that it saves nothing.
#if defined(__AVX512F__)
  static constexpr int group_size = single ? 4 : 3;
#elif defined(__AVX2__)
  static constexpr int group_size = single ? 3 : 0;
#else
  static constexpr int group_size = 0;
#endif

  // Lane l is table[index[l]].
  static NPU_INLINE Reg lookup(Reg table, Bits index) {
#if defined(__AVX512F__)
    if constexpr (single) return (Reg)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
    else return (Reg)_mm512_permutexvar_pd((__m512i)index, (__m512d)table);
#elif defined(__AVX2__)
    if constexpr (single) return (Reg)_mm256_permutevar8x32_ps((__m256)table, (__m256i)index);
#endif
    (void)index;
    return table;
  }

  // Lane e is the sum of the terms whose bit is set in e: all partial sums of 1 to group_size terms, `stride` apart.
  static NPU_INLINE Reg partial_sums(const T* terms, int64_t stride, int count) {
#if defined(__AVX512F__)
    constexpr Mask kHas[4] = {Mask(0xAAAA), Mask(0xCCCC), Mask(0xF0F0), Mask(0xFF00)};
    Reg sums;
    if constexpr (single) sums = (Reg)_mm512_maskz_mov_ps(kHas[0], (__m512)set1(terms[0]));
    else sums = (Reg)_mm512_maskz_mov_pd(kHas[0], (__m512d)set1(terms[0]));
    for (int j = 1; j < count; ++j) sums = add_masked(sums, kHas[j], set1(terms[j * stride]));
#else
    Reg sums = zero();
    alignas(NPU_VECTOR_BYTES) static constexpr Int kLane[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    Bits lane;
    std::memcpy(&lane, kLane, sizeof lane);
    for (int j = 0; j < count; ++j) {
      const Bits has = (lane & set1_bits(Int(1) << j)) != set1_bits(0);
      sums = sums + (Reg)((Bits)set1(terms[j * stride]) & has);
    }
#endif
    return sums;
  }

  // The same in two steps, for many groups of four terms that lie beside each other: of every four lanes 0, the first,
  // the second, both; and from these, and from the terms, those of four.
  static constexpr bool sums_pairs = group_size == 4;
#if defined(__AVX512F__)
  static NPU_INLINE Reg pair_sums(Reg terms) {
    const __m512 t = (__m512)terms, both = _mm512_add_ps(t, _mm512_permute_ps(t, 0xB1));
    return (Reg)_mm512_mask_permute_ps(_mm512_maskz_permute_ps(0x6666, t, 0x10), 0x8888, both, 0);
  }
  static NPU_INLINE Reg partial_sums_of_pairs(const T* pairs, const T* terms) {
    const Reg sums = (Reg)_mm512_broadcast_f32x4(_mm_loadu_ps(pairs));
    return add_masked(add_masked(sums, 0xF0F0, set1(terms[2])), 0xFF00, set1(terms[3]));
  }
#endif

  template <int... L>
  static NPU_INLINE Reg pick(Reg a, Reg b, std::integer_sequence<int, L...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, L...);
#else
    return __builtin_shuffle(a, b, Bits{L...});
#endif
  }
  // Lanes with bit `step` clear come from a, the others from b's lane `step` lower: one half of a 2 x 2 block
  // transpose.
  template <int step, int... L>
  static NPU_INLINE Reg merge_low(Reg a, Reg b, std::integer_sequence<int, L...>) {
    return pick(a, b, std::integer_sequence<int, ((L & step) ? width + L - step : L)...>{});
  }
  template <int step, int... L>
  static NPU_INLINE Reg merge_high(Reg a, Reg b, std::integer_sequence<int, L...>) {
    return pick(a, b, std::integer_sequence<int, ((L & step) ? width + L : L + step)...>{});
  }

  // `count` columns that lie row by row, in as many registers, to one register a column; and the reverse. Every result
  // takes count - 1 permutes of two registers: fewer than a transpose up to most_zipped columns.
#if defined(__AVX512F__)
  static constexpr int most_zipped = single ? 8 : 5;
#else
  static constexpr int most_zipped = 2;
#endif
  template <int count>
  static NPU_INLINE void unzip(const Reg* rows, Reg* columns) {
    unzip_each(rows, columns, std::make_integer_sequence<int, count>{});
  }
  template <int count>
  static NPU_INLINE void zip(const Reg* columns, Reg* rows) {
    zip_each(columns, rows, std::make_integer_sequence<int, count>{});
  }

  // In place transpose of `count` registers, whose lanes are blocks of so many, by log2(count) rounds of 2 x 2 block
  // swaps: lane l of a block of the n-th register becomes lane n of that block of the l-th.
  template <int count = width>
  static NPU_INLINE void transpose(Reg* r) {
    transpose_step<1, count>(r);
  }

  // Lane n of the result is the sum of the lanes of r[n], for n < width: the same rounds, adding instead of keeping.
  static NPU_INLINE Reg sum_each(Reg* r) { return sum_step<1>(r); }

 private:
#if !defined(__AVX512F__)
  static NPU_INLINE bool any(Bits condition) {
#if defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)condition, (__m256i)condition);
#elif defined(NPU_USE_NEON)
    return vmaxvq_u32((uint32x4_t)condition) != 0;
#else
    Int r = 0;
    for (int l = 0; l < width; ++l) r |= condition[l];
    return r != 0;
#endif
  }
  static NPU_INLINE Bits lanes(const Mask& mask) {
    Bits bits;
    std::memcpy(&bits, mask.lane, sizeof bits);
    return bits;
  }
#endif

  using Lanes = std::make_integer_sequence<int, width>;

  template <int... C>
  static NPU_INLINE void unzip_each(const Reg* rows, Reg* columns, std::integer_sequence<int, C...>) {
    ((columns[C] = unzip_one<int(sizeof...(C)), C, 1>(pick_row<int(sizeof...(C)), C>(rows, Lanes{}), rows)), ...);
  }
  // Lane l of a column is element l * count + column of the rows: the first two registers' at once, then one by one.
  template <int count, int column, int... L>
  static NPU_INLINE Reg pick_row(const Reg* rows, std::integer_sequence<int, L...>) {
    return pick(rows[0], rows[1], std::integer_sequence<int, ((L * count + column) % (2 * width))...>{});
  }
  template <int count, int column, int done>
  static NPU_INLINE Reg unzip_one(Reg found, const Reg* rows) {
    if constexpr (done + 1 < count)
      return unzip_one<count, column, done + 1>(add_row<count, column, done + 1>(found, rows[done + 1], Lanes{}), rows);
    else return found;
  }
  template <int count, int column, int row, int... L>
  static NPU_INLINE Reg add_row(Reg found, Reg more, std::integer_sequence<int, L...>) {
    return pick(found, more,
                std::integer_sequence<int, ((L * count + column) / width == row ? width + (L * count + column) % width
                                                                                : L)...>{});
  }

  template <int... R>
  static NPU_INLINE void zip_each(const Reg* columns, Reg* rows, std::integer_sequence<int, R...>) {
    ((rows[R] = zip_one<int(sizeof...(R)), R, 1>(pick_column<int(sizeof...(R)), R>(columns, Lanes{}), columns)), ...);
  }
  // Lane l of a register of rows is lane e / count of column e % count, where e is its element row * width + l.
  template <int count, int row, int... L>
  static NPU_INLINE Reg pick_column(const Reg* columns, std::integer_sequence<int, L...>) {
    return pick(
        columns[0], columns[1],
        std::integer_sequence<int, ((row * width + L) / count + ((row * width + L) % count == 1 ? width : 0))...>{});
  }
  template <int count, int row, int done>
  static NPU_INLINE Reg zip_one(Reg found, const Reg* columns) {
    if constexpr (done + 1 < count)
      return zip_one<count, row, done + 1>(add_column<count, row, done + 1>(found, columns[done + 1], Lanes{}),
                                           columns);
    else return found;
  }
  template <int count, int row, int column, int... L>
  static NPU_INLINE Reg add_column(Reg found, Reg more, std::integer_sequence<int, L...>) {
    return pick(
        found, more,
        std::integer_sequence<int, ((row * width + L) % count == column ? width + (row * width + L) / count : L)...>{});
  }

  template <int step, int count>
  static NPU_INLINE void transpose_step(Reg* r) {
    for (int n = 0; n < count; ++n) {
      if (n & step) continue;
      const Reg a = r[n], b = r[n + step];
      r[n] = merge_low<step>(a, b, Lanes{});
      r[n + step] = merge_high<step>(a, b, Lanes{});
    }
    if constexpr (2 * step < count) transpose_step<2 * step, count>(r);
  }

  template <int step>
  static NPU_INLINE Reg sum_step(Reg* r) {
    for (int n = 0; n < width; n += 2 * step)
      r[n] = merge_low<step>(r[n], r[n + step], Lanes{}) + merge_high<step>(r[n], r[n + step], Lanes{});
    if constexpr (2 * step < width) return sum_step<2 * step>(r);
    else return r[0];
  }
};

}  // namespace NPU_ISA
}  // namespace npu
