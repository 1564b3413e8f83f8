// log, exp and sincos of a register. Errors are against a long-double evaluation, tested as written
// (csrc/tests/vector_math_test.cpp).
//
//   function  valid range                        float max error   double max error   special values
//   log       from the least normal number on    1.0 ulp           1.0 ulp            log inf = inf, nan -> nan
//     AVX-512                                    1.1 ulp           1.1 ulp
//   exp       every number                       1.1 ulp           1.0 ulp            overflow -> inf, underflow ->
//     AVX-512                                    1.1 ulp           1.1 ulp            subnormals, 0
//   sincos    |q| <= 1e5 (float), 1e6 (double)   1.5 ulp           1.5 ulp            farther out: the C library, lane
//                                                                                     by lane
//
// The layers take the logarithm of nothing smaller: r = g (|x| + eps) + (1 - g) is at least eps where g is 1, and
// else at least 1 - g.
#pragma once

#include <cmath>

#include "simd/tables.h"

namespace npu {
namespace NPU_ISA {

constexpr double kPi = 3.14159265358979323846;

#if defined(__AVX512F__)
template <typename T>
NPU_INLINE typename Simd<T>::Reg log_by_table(typename Simd<T>::Reg a) {
  using S = Simd<T>;
  using Table = LogTable<T>;
  typename S::Reg e, m;
  S::split(a, &e, &m);
  const auto cell = (typename S::Bits)a >> Table::kShift;  // m has the bits of a, but for its exponent
  const auto z = S::fma(m, S::lookup_pair(Table::kReciprocal, cell), S::set1(T(-1)));
  constexpr int count = sizeof(Table::kFactors) / sizeof(T);
  auto p = S::set1(Table::kFactors[count - 1]);
  for (int n = count - 2; n >= 0; --n) p = S::fma(p, z, S::set1(Table::kFactors[n]));
  const auto large = S::fma(e, S::set1(Table::kLn2[0]), S::lookup_pair(Table::kLog, cell));
  const auto small = S::fma(e, S::set1(Table::kLn2[1]), z);  // ready before p
  return large + S::fma(p, z * z, small);
}

// For a bounded p: far outside the range of results, n would not be a multiple of 1 / kCells.
template <typename T>
NPU_INLINE typename Simd<T>::Reg exp_by_table(typename Simd<T>::Reg p) {
  using S = Simd<T>;
  using Table = ExpTable<T>;
  constexpr int kCells = sizeof(Table::kPowers) / sizeof(T), kDigits = std::numeric_limits<T>::digits;
  // Adding it rounds to a multiple of 1 / kCells, whose fraction is then in the lowest bits.
  const auto magic = S::set1(T(1.5) * T(int64_t(1) << (kDigits - 1)) / T(kCells));
  const auto shifted = S::fma(p, S::set1(T(1.4426950408889634074)), magic);
  const auto n = shifted - magic;
  auto t = S::fma_exact(n, S::set1(-LogTable<T>::kLn2[0]), p);
  t = S::fma_exact(n, S::set1(-LogTable<T>::kLn2[1]), t);
  constexpr int count = sizeof(Table::kFactors) / sizeof(T);
  auto r = S::set1(Table::kFactors[count - 1]);
  for (int k = count - 2; k >= 0; --k) r = S::fma(r, t, S::set1(Table::kFactors[k]));
  r = S::fma(r, t * t, t);
  const auto power = S::lookup_pair(Table::kPowers, (typename S::Bits)shifted);
  return S::scale(S::fma(power, r, power), n);
}
#endif

// sin(n pi/2 + t) and its cosine, of t's.
template <typename T>
NPU_INLINE void place(typename Simd<T>::Bits n, typename Simd<T>::Reg sin_t, typename Simd<T>::Reg cos_t,
                      typename Simd<T>::Reg* sine, typename Simd<T>::Reg* cosine) {
  using S = Simd<T>;
  constexpr int kToTop = 8 * sizeof(T) - 2;  // the second lowest bit to the highest
  using Bits = typename S::Bits;
  const auto quadrant = (typename S::UnsignedBits)n;  // unsigned, since n may come of nan
  *sine = S::negate_where((Bits)(quadrant << kToTop), S::select_odd(n, cos_t, sin_t));
  *cosine = S::negate_where((Bits)((quadrant + 1) << kToTop), S::select_odd(n, sin_t, cos_t));
}

// `near`, with the C library's function in the lanes where |q| > limit. By value: a result whose address is known
// elsewhere would go through memory at every call.
template <typename T, typename Function>
NPU_NOINLINE typename Simd<T>::Reg far(typename Simd<T>::Reg q, T limit, typename Simd<T>::Reg near,
                                       Function function) {
  for (int l = 0; l < Simd<T>::width; ++l)
    if (std::fabs(q[l]) > limit) near[l] = function(q[l]);
  return near;
}
template <typename T>
NPU_INLINE void replace_far(typename Simd<T>::Reg q, T limit, typename Simd<T>::Reg* sine,
                            typename Simd<T>::Reg* cosine) {
  if (__builtin_expect(!Simd<T>::any_less(Simd<T>::set1(limit), Simd<T>::abs(q)), 1)) return;
  *sine = far(q, limit, *sine, [](T v) { return std::sin(v); });
  *cosine = far(q, limit, *cosine, [](T v) { return std::cos(v); });
}

template <typename T>
struct VectorMath;

template <>
struct VectorMath<float> {
  using S = Simd<float>;
  using Reg = S::Reg;
  using Bits = S::Bits;

  // log a = e ln 2 + log(1 + f),  a = 2^e (1 + f),  1 + f in [sqrt(1/2), sqrt(2)).
  static NPU_INLINE Reg log(Reg a) {
#if defined(__AVX512F__)
    return log_by_table<float>(a);
#else
    // Subtracting the bits of sqrt(1/2) first centres the significand's interval.
    const Bits offset = (Bits)a - S::set1_bits(0x3f3504f3);
    const Bits exponent = offset >> 23;
    const Reg f = (Reg)((offset & S::set1_bits(0x007fffff)) + S::set1_bits(0x3f3504f3)) - S::set1(1.0f);
    const Reg e = __builtin_convertvector(exponent, Reg);
    Reg p = S::set1(7.0376836292e-2f);
    p = S::fma(p, f, S::set1(-1.1514610310e-1f));
    p = S::fma(p, f, S::set1(1.1676998740e-1f));
    p = S::fma(p, f, S::set1(-1.2420140846e-1f));
    p = S::fma(p, f, S::set1(1.4249322787e-1f));
    p = S::fma(p, f, S::set1(-1.6668057665e-1f));
    p = S::fma(p, f, S::set1(2.0000714765e-1f));
    p = S::fma(p, f, S::set1(-2.4999993993e-1f));
    p = S::fma(p, f, S::set1(3.3333331174e-1f));
    const Reg z = f * f;
    Reg tail = p * f * z;
    tail = S::fma(e, S::set1(-2.12194440e-4f), tail);
    tail = S::fma(z, S::set1(-0.5f), tail);
    const Reg r = S::fma(e, S::set1(0.693359375f), f + tail);
    return S::select(a < S::set1(std::numeric_limits<float>::infinity()), r, a);  // inf and nan stay
#endif
  }

  // exp p = 2^n exp t,  n = round(p / ln 2); 2^n in two factors, so that subnormal results round once.
  static NPU_INLINE Reg exp(Reg p) {
    p = S::bounded(p, S::set1(-104.0f), S::set1(89.0f));
#if defined(__AVX512F__)
    return exp_by_table<float>(p);
#else
    const Reg magic = S::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer and leaves it in the low bits
    const Reg shifted = S::fma(p, S::set1(1.44269504f), magic);
    const Reg n = shifted - magic;
    Reg t = S::fma_exact(n, S::set1(-6.93145752e-1f), p);
    t = S::fma_exact(n, S::set1(-1.42860677e-6f), t);
    Reg r = S::set1(1.98756915e-4f);
    r = S::fma(r, t, S::set1(1.39819994e-3f));
    r = S::fma(r, t, S::set1(8.33345205e-3f));
    r = S::fma(r, t, S::set1(4.16657962e-2f));
    r = S::fma(r, t, S::set1(1.66666657e-1f));
    r = S::fma(r, t, S::set1(0.5f));
    r = S::fma(r * t, t, t) + S::set1(1.0f);
    const Bits i = (Bits)shifted - S::set1_bits(0x4b400000);
    const Bits half = i >> 1;
    return r * power_of_two(half) * power_of_two(i - half);
#endif
  }

  // One reduction for both: q = n pi/2 + t. pi/2 in three parts: the first product is exact, the sum good to 2^-70.
  static NPU_INLINE void sincos(Reg q, Reg* sine, Reg* cosine) {
    const Reg magic = S::set1(12582912.0f);
    const Reg shifted = S::fma(q, S::set1(6.36619772e-1f), magic);
    const Reg n = shifted - magic;
    Reg t = S::fma_exact(n, S::set1(-1.57079637050628662109375f), q);
    t = S::fma_exact(n, S::set1(4.37113900018624283e-8f), t);
    t = S::fma_exact(n, S::set1(1.71512451e-15f), t);
    const Reg z = t * t;
    Reg s = S::set1(2.71831149e-6f);
    s = S::fma(s, z, S::set1(-1.98393348e-4f));
    s = S::fma(s, z, S::set1(8.33332938e-3f));
    s = S::fma(s, z, S::set1(-1.66666666e-1f));
    s = S::fma(s * z, t, t);
    Reg c = S::set1(2.44331571e-5f);
    c = S::fma(c, z, S::set1(-1.38873162e-3f));
    c = S::fma(c, z, S::set1(4.16666456e-2f));
    c = S::fma(c, z, S::set1(-0.5f));
    c = S::fma(c, z, S::set1(1.0f));
    place<float>((Bits)shifted, s, c, sine, cosine);
    replace_far(q, 1e5f, sine, cosine);
  }

 private:
  static NPU_INLINE Reg power_of_two(Bits n) { return (Reg)((n + S::set1_bits(127)) << 23); }
};

template <>
struct VectorMath<double> {
  using S = Simd<double>;
  using Reg = S::Reg;
  using Bits = S::Bits;
  using UnsignedBits = S::UnsignedBits;

  // As for float; log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)),  s = f / (2 + f).
  static NPU_INLINE Reg log(Reg a) {
#if defined(__AVX512F__)
    return log_by_table<double>(a);
#else
    const Bits centre = S::set1_bits(0x3fe6a09e667f3bcd);
    const Bits offset = (Bits)a - centre;
    const Reg f = (Reg)((offset & S::set1_bits(0x000fffffffffffff)) + centre) - S::set1(1.0);
    // The exponent as a double: biased to be positive (AVX2 has no 64-bit arithmetic shift), then put under the bits of
    // 1.5 * 2^52, where an integer reads as its own value. Unsigned: the bits of inf and nan overflow a signed sum.
    const Reg magic = S::set1(6755399441055744.0);
    const UnsignedBits bias = (UnsignedBits)S::set1_bits(0x4000000000000000);
    const Bits exponent = (Bits)(((UnsignedBits)offset + bias) >> 52);
    const Reg biased = (Reg)(exponent | (Bits)magic) - magic;
    const Reg e = biased - S::set1(1024.0);
    const Reg s = f / (S::set1(2.0) + f);
    const Reg z = s * s;
    Reg r = S::set1(1.479819860511658591e-1);
    r = S::fma(r, z, S::set1(1.531383769920937332e-1));
    r = S::fma(r, z, S::set1(1.818357216161805012e-1));
    r = S::fma(r, z, S::set1(2.222219843214978396e-1));
    r = S::fma(r, z, S::set1(2.857142874366239149e-1));
    r = S::fma(r, z, S::set1(3.999999999940941908e-1));
    r = S::fma(r, z, S::set1(6.666666666666735130e-1));
    r = r * z;
    const Reg half_square = S::set1(0.5) * f * f;
    const Reg tail = S::fma(e, S::set1(1.90821492927058770002e-10), s * (half_square + r));
    const Reg result = S::fma(e, S::set1(6.93147180369123816490e-1), f - (half_square - tail));
    return S::select(a < S::set1(std::numeric_limits<double>::infinity()), result, a);  // inf and nan stay
#endif
  }

  static NPU_INLINE Reg exp(Reg p) {
    p = S::bounded(p, S::set1(-746.0), S::set1(710.0));
#if defined(__AVX512F__)
    return exp_by_table<double>(p);
#else
    const Reg magic = S::set1(6755399441055744.0);
    const Reg shifted = S::fma(p, S::set1(1.4426950408889634074), magic);
    const Reg n = shifted - magic;
    Reg t = S::fma_exact(n, S::set1(-6.93147180369123816490e-1), p);
    t = S::fma_exact(n, S::set1(-1.90821492927058770002e-10), t);
    // Taylor to t^13: |t| <= ln(2)/2 leaves less than 2^-57.
    Reg r = S::set1(1.0 / 6227020800.0);
    r = S::fma(r, t, S::set1(1.0 / 479001600.0));
    r = S::fma(r, t, S::set1(1.0 / 39916800.0));
    r = S::fma(r, t, S::set1(1.0 / 3628800.0));
    r = S::fma(r, t, S::set1(1.0 / 362880.0));
    r = S::fma(r, t, S::set1(1.0 / 40320.0));
    r = S::fma(r, t, S::set1(1.0 / 5040.0));
    r = S::fma(r, t, S::set1(1.0 / 720.0));
    r = S::fma(r, t, S::set1(1.0 / 120.0));
    r = S::fma(r, t, S::set1(1.0 / 24.0));
    r = S::fma(r, t, S::set1(1.0 / 6.0));
    r = S::fma(r, t, S::set1(0.5));
    r = S::fma(r * t, t, t) + S::set1(1.0);
    const UnsignedBits i = (UnsignedBits)shifted - (UnsignedBits)magic;
    const UnsignedBits half = half_of(i);
    return r * power_of_two(half) * power_of_two(i - half);
#endif
  }

  static NPU_INLINE void sincos(Reg q, Reg* sine, Reg* cosine) {
    const Reg magic = S::set1(6755399441055744.0);
    const Reg shifted = S::fma(q, S::set1(6.36619772367581382433e-1), magic);
    const Reg n = shifted - magic;
    Reg t = S::fma_exact(n, S::set1(-1.57079632679489655800), q);
    t = S::fma_exact(n, S::set1(-6.12323399573676603587e-17), t);
    t = S::fma_exact(n, S::set1(1.49738490485919983000e-33), t);
    const Reg z = t * t;
    Reg s = S::set1(1.58969099521155010221e-10);
    s = S::fma(s, z, S::set1(-2.50507602534068634195e-8));
    s = S::fma(s, z, S::set1(2.75573137070700676789e-6));
    s = S::fma(s, z, S::set1(-1.98412698298579493134e-4));
    s = S::fma(s, z, S::set1(8.33333333332248946124e-3));
    s = S::fma(s, z, S::set1(-1.66666666666666324348e-1));
    s = S::fma(s * z, t, t);
    Reg c = S::set1(-1.13596475577881948265e-11);
    c = S::fma(c, z, S::set1(2.08757232129817482790e-9));
    c = S::fma(c, z, S::set1(-2.75573143513906633035e-7));
    c = S::fma(c, z, S::set1(2.48015872894767294178e-5));
    c = S::fma(c, z, S::set1(-1.38888888888741095749e-3));
    c = S::fma(c, z, S::set1(4.16666666666666019037e-2));
    const Reg half = S::set1(0.5) * z;
    const Reg w = S::set1(1.0) - half;
    c = w + S::fma(z * z, c, (S::set1(1.0) - w) - half);
    place<double>((Bits)shifted, s, c, sine, cosine);
    replace_far(q, 1e6, sine, cosine);
  }

 private:
  // n >> 1 for small n of either sign, biased as in log. Unsigned as there: n may come of nan.
  static NPU_INLINE UnsignedBits half_of(UnsignedBits n) {
    return ((n + (UnsignedBits)S::set1_bits(4096)) >> 1) - (UnsignedBits)S::set1_bits(2048);
  }
  static NPU_INLINE Reg power_of_two(UnsignedBits n) { return (Reg)((n + (UnsignedBits)S::set1_bits(1023)) << 52); }
};

}  // namespace NPU_ISA
}  // namespace npu
