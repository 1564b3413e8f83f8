// The relevance gate of the Neural Power Unit.
#pragma once

#include "layers/npu.h"
#include "panel.h"
#include "simd/vector_math.h"

namespace npu {
namespace NPU_ISA {

// ghat of a model: its gate within [0, 1], or ones.
template <typename T>
void load_gate(const NpuInputs<T>& in, int64_t model, T* gate) {
  for (int64_t i = 0; i < in.in; ++i) gate[i] = in.gate == nullptr ? T(1) : clamp_gate(in.gate[model * in.in + i]);
}

// Of a register of gates ghat, or one gate: r = ghat (|x| + eps) + 1 - ghat. Adding ghat eps to 1 - ghat first would
// save an addition, but where ghat is small r would have another rounding error, the same in every row.
template <typename T>
class Gate {
  using S = Simd<T>;
  using Reg = typename S::Reg;

 public:
  NPU_INLINE Gate(Reg gate, Reg eps) : Gate(gate, S::set1(T(1)) - gate, eps) {}
  // `rest` is 1 - ghat.
  NPU_INLINE Gate(Reg gate, Reg rest, Reg eps) : gate_(gate), rest_(rest), eps_(eps) {}

  // log r
  NPU_INLINE Reg log(Reg x) const { return VectorMath<T>::log(S::fma(gate_, S::abs(x) + eps_, rest_)); }

  // dx of dL: dr ghat sign(x), dr = dL / r; 0 at 0, nan at nan. `sum` takes dr (|x| + eps - 1), the gate's gradient.
  NPU_INLINE Reg spread(Reg dl, Reg x, Reg* sum) const { return S::with_sign_of(of_size(dl, x, sum), x); }
  // The same with the slope from the right at 0, which is the exact one of whole powers: the time loops take it.
  NPU_INLINE Reg spread_right(Reg dl, Reg x, Reg* sum) const {
    const Reg dx = of_size(dl, x, sum);
    return S::select(x < S::zero(), -dx, dx);
  }

 private:
  // d|x| of dL.
  NPU_INLINE Reg of_size(Reg dl, Reg x, Reg* sum) const {
    const Reg size = S::abs(x) + eps_, dr = dl / S::fma(gate_, size, rest_);
    *sum = S::fma(dr, size - S::set1(T(1)), *sum);
    return dr * gate_;
  }

  const Reg gate_, rest_, eps_;
};

}  // namespace NPU_ISA
}  // namespace npu
