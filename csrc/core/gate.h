// The relevance gate of the Neural Power Unit.
#pragma once

#include "vector_math.h"

namespace npu {
namespace NPU_ISA {

// Of a register of gates ghat, or one gate: r = ghat (|x| + eps) + 1 - ghat = ghat |x| + rest.
template <typename T>
class Gate {
  using S = Simd<T>;
  using Reg = typename S::Reg;

 public:
  NPU_INLINE Gate(Reg gate, Reg eps) : gate_(gate), rest_(rest(gate, eps)), one_less_(S::set1(T(1)) - eps) {}
  static NPU_INLINE Reg rest(Reg gate, Reg eps) { return S::fma(gate, eps, S::set1(T(1)) - gate); }

  // log r
  NPU_INLINE Reg log(Reg x) const { return log(x, gate_, rest_); }
  static NPU_INLINE Reg log(Reg x, Reg gate, Reg rest) { return VectorMath<T>::log(S::fma(gate, S::abs(x), rest)); }

  // dx of dL: dr ghat sign(x), dr = dL / r; 0 at 0, nan at nan. `sum` takes dr (|x| + eps - 1), the gate's gradient.
  NPU_INLINE Reg spread(Reg dl, Reg x, Reg* sum) const {
    const Reg size = S::abs(x), dr = dl / S::fma(gate_, size, rest_);
    *sum = S::fma(dr, size - one_less_, *sum);
    return S::with_sign_of(dr * gate_, x);
  }

 private:
  const Reg gate_, rest_, one_less_;  // 1 - eps
};

}  // namespace NPU_ISA
}  // namespace npu
