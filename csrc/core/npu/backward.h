// Shared by the forms of the backward (npu/backward.cpp, which has the algebra, names them).
#pragma once

#include "api.h"
#include "layers/npu.h"
#include "npu/gate.h"
#include "npu/limits.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

// The weight sums of one model and row group.
enum Part { kSP, kMQ, kSQ, kMP };
template <bool complex>
constexpr int kParts = complex ? 4 : 2;

// The order of the weight sums, if a Form does not choose its own: [part][O][I]. `at` is where a register of them
// begins.
template <typename T, bool complex>
struct PlainOrder {
  static int64_t size(const NpuInputs<T>& in) { return kParts<complex> * in.out * in.in; }
  static int64_t at(const NpuInputs<T>& in, int part, int64_t o, int64_t i) { return (part * in.out + o) * in.in + i; }
};

// factor times a sum that it was taken out of: 0 where factor is, also if the sum without it has overflowed.
template <typename T>
NPU_INLINE typename Simd<T>::Reg times_sum(typename Simd<T>::Reg factor, typename Simd<T>::Reg sum) {
  using S = Simd<T>;
  return S::select(factor == S::zero(), S::zero(), factor * sum);
}

// The weights' gradients of a register of inputs, from their sums; wr MQ - wi MP is added to `phase`. A null output is
// not wanted.
template <typename T, bool complex>
NPU_INLINE void weight_gradients(const NpuBackward<T>& f, int64_t at, int count, typename Simd<T>::Reg gate,
                                 const typename Simd<T>::Reg* sum, typename Simd<T>::Reg& phase) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  const Reg turn = S::set1(T(kPi)) * gate;
  if (f.grad_weight_re != nullptr)
    S::store_first(f.grad_weight_re + at, sum[kSP] + times_sum<T>(turn, sum[kMQ]), count);
  phase = phase + times_sum<T>(S::load_first(f.inputs.weight_re + at, count), sum[kMQ]);
  if constexpr (complex) {
    if (f.grad_weight_im != nullptr)
      S::store_first(f.grad_weight_im + at, sum[kSQ] - times_sum<T>(turn, sum[kMP]), count);
    phase = phase - times_sum<T>(S::load_first(f.inputs.weight_im + at, count), sum[kMP]);
  }
}

// The gate's gradient from the sums over rows of so many groups, [groups][I], and the phase sums.
template <typename T>
void finish_gate(const NpuBackward<T>& f, int64_t model, const double* gate_sums, int64_t groups, const T* phase) {
  if (f.grad_gate == nullptr) return;
  const int64_t in = f.inputs.in;
  for (int64_t i = 0; i < in; ++i) {
    double grad = kPi * double(phase[i]);
    for (int64_t g = 0; g < groups; ++g) grad += gate_sums[g * in + i];
    const T raw = f.inputs.gate[model * in + i];
    const bool passes = f.straight_through || (raw >= T(0) && raw <= T(1));
    f.grad_gate[model * in + i] = passes ? T(grad) : T(0);
  }
}

// What a span of one model's rows adds up to.
template <typename T>
struct GroupTask {
  int64_t model, begin, end;  // rows
  const T* gate;              // [I], clamped
  T* sums;            // in the Form's Order, overwritten; null: gradients are written instead (the span is all rows)
  double* gate_sums;  // [I], added to: sum_b dr (|x| + eps - 1)
  T* phase_sums;      // [I], where gradients are written: sum_o wr MQ - wi MP
  bool want_spread;   // grad_x and gate_sums
  bool want_sums;
};

}  // namespace NPU_ISA
}  // namespace npu
