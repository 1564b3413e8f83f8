// Backward of the Neural Power Unit family; npu/forward.cpp has the forward and the notation.
//
//   dP = grad_y y                 dQ = -grad_y s
//   SP = dP' L    SQ = dQ' L      real products    [O, I]
//   MP = dP' m    MQ = dQ' m      mask products    [O, I]
//   dWr = SP + pi MQ ghat         dWi = SQ - pi MP ghat
//   dL  = dP Wr + dQ Wi           dr = dL / r,  dx = dr ghat sign(x)
//   dghat = sum_b dr (|x| + eps - 1) + pi sum_o (Wr MQ - Wi MP)
//
// The last line takes the gate's phase gradient from the mask products that dW needs anyway: six real products and two
// mask products in all, where autograd through the formula runs twelve with the forward's. RealNPU: no dQ Wi, SQ, MP.
//
// Rows go in groups, whose number follows from the shape alone, and every sum over rows runs in a fixed order, so that
// results do not depend on the number of threads (npu/backward_groups.h). Within a group there are three forms: a
// register holds rows of one feature (npu/backward_narrow.h), or inputs of one row (npu/backward_wide.h; for few
// outputs npu/backward_few_outputs.h). npu/limits.h chooses. Where the processor has products of bfloat16,
// large layers of float32 take npu/tiled_backward.cpp instead (npu/limits.h).
#include "npu/backward_few_outputs.h"
#include "npu/backward_groups.h"
#include "npu/backward_narrow.h"
#include "npu/backward_wide.h"

namespace npu {
namespace NPU_ISA {
namespace {

template <typename T, bool complex>
bool backward(NpuBackwardForm form, const NpuBackward<T>& f, const Parallel& parallel) {
  const BackwardGroups<T, complex> groups(f, parallel);
  switch (form) {
    case NpuBackwardForm::kFewOutputs:
      if (f.inputs.out == 0 || f.inputs.out > kBackwardFewOutputs) return false;
      groups.run([&](int64_t rows) { return few_outputs::Group<T, complex>(f, rows); });
      return true;
    case NpuBackwardForm::kWide:
      groups.run([&](int64_t) { return wide::Group<T, complex>(f); });
      return true;
    case NpuBackwardForm::kNarrow:
      groups.run([&](int64_t rows) { return narrow::Group<T, complex>(f, rows); });
      return true;
  }
  return false;
}

}  // namespace

template <typename T>
bool npu_backward_in(NpuBackwardForm form, const NpuBackward<T>& f, const Parallel& parallel) {
  return f.inputs.weight_im != nullptr ? backward<T, true>(form, f, parallel) : backward<T, false>(form, f, parallel);
}

template <typename T>
void npu_backward(const NpuBackward<T>& f, const Parallel& parallel) {
  if (!npu_backward_in(Limits<T>::backward(f.inputs), f, parallel))
    npu_backward_in(NpuBackwardForm::kWide, f, parallel);
}

template bool npu_backward_in<float>(NpuBackwardForm, const NpuBackward<float>&, const Parallel&);
template bool npu_backward_in<double>(NpuBackwardForm, const NpuBackward<double>&, const Parallel&);
template void npu_backward<float>(const NpuBackward<float>&, const Parallel&);
template void npu_backward<double>(const NpuBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
