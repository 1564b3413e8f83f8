// What the NALU and the iNALU share: the weight tanh(weight) sigmoid(mask) of a Neural Accumulator, and the gate.
#pragma once

#include "panel.h"
#include "simd/vector_math.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
NPU_INLINE typename Simd<T>::Reg sigmoid(typename Simd<T>::Reg v) {
  using S = Simd<T>;
  return S::set1(T(1)) / (S::set1(T(1)) + VectorMath<T>::exp(-v));
}

// The gate's share and the rest, sigmoid(v) and sigmoid(-v), without cancellation.
template <typename T>
struct Shares {
  typename Simd<T>::Reg gate, rest;

  explicit NPU_INLINE Shares(typename Simd<T>::Reg v) {
    using S = Simd<T>;
    const typename S::Reg one = S::set1(T(1)), q = VectorMath<T>::exp(-S::abs(v));
    const typename S::Reg more = one / (one + q), less = q * more;
    gate = S::select(v < S::zero(), less, more);
    rest = S::select(v < S::zero(), more, less);
  }
};

// |v| < 0.4: Lambert's continued fraction to its seventh level, good to 1e-17. Else (1 - q) / (1 + q), q = exp(-2 |v|).
template <typename T>
NPU_INLINE typename Simd<T>::Reg tanh(typename Simd<T>::Reg v) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  const Reg one = S::set1(T(1)), size = S::abs(v), z = v * v;
  const Reg above = S::fma(S::fma(z + S::set1(T(378)), z, S::set1(T(17325))), z, S::set1(T(135135)));
  const Reg below =
      S::fma(S::fma(S::fma(S::set1(T(28)), z, S::set1(T(3150))), z, S::set1(T(62370))), z, S::set1(T(135135)));
  const Reg q = VectorMath<T>::exp(S::set1(T(-2)) * size);
  const typename S::Bits near = size < S::set1(T(0.4));
  const Reg far = S::select(v < S::zero(), q - one, one - q);
  return S::select(near, v * above, far) / S::select(near, below, one + q);
}

// product = tanh(weight) sigmoid(mask), of `count` elements. known: tanh and sigmoid, one after the other; null:
// computed, and left in `keep` unless that is null.
template <typename T>
void nac_weights(const T* weight, const T* mask, int64_t count, const T* known, T* keep, T* product,
                 const Parallel& parallel) {
  using S = Simd<T>;
  constexpr int64_t kChunk = 1024;
  parallel.over(ceil_div(count, kChunk), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kChunk; n < min(count, end * kChunk); n += S::width) {
      const int lanes = int(min<int64_t>(S::width, count - n));
      const auto turn = known ? S::load_first(known + n, lanes) : tanh<T>(S::load_first(weight + n, lanes));
      const auto share = known ? S::load_first(known + count + n, lanes) : sigmoid<T>(S::load_first(mask + n, lanes));
      S::store_first(product + n, turn * share, lanes);
      if (keep == nullptr) continue;
      S::store_first(keep + n, turn, lanes);
      S::store_first(keep + count + n, share, lanes);
    }
  });
}

// The gradients of weight and mask, of elements [at, at + lanes), from that of their product. parts: tanh and sigmoid
// of all `count` elements. A null output is not wanted.
template <typename T>
NPU_INLINE void nac_gradients(typename Simd<T>::Reg grad, const T* parts, int64_t count, int64_t at, int lanes,
                              T* grad_weight, T* grad_mask) {
  using S = Simd<T>;
  const typename S::Reg one = S::set1(T(1));
  const typename S::Reg turn = S::load_first(parts + at, lanes), share = S::load_first(parts + count + at, lanes);
  if (grad_weight != nullptr) S::store_first(grad_weight + at, grad * share * (one - turn * turn), lanes);
  if (grad_mask != nullptr) S::store_first(grad_mask + at, grad * turn * share * (one - share), lanes);
}

}  // namespace NPU_ISA
}  // namespace npu
