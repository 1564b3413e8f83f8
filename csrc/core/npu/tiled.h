// The NPU family by tile products (npu/tiles.h): float32 only, whatever the shape; npu/limits.h knows where it pays.
// Models with values that have no terms run on the ordinary AVX-512 kernels.
#pragma once

#include "api.h"
#include "layers/npu.h"

namespace npu {

#define NPU_DECLARE_TILES(isa)                                   \
  namespace isa {                                                \
  void npu_forward(const NpuForward<float>&, const Parallel&);   \
  void npu_backward(const NpuBackward<float>&, const Parallel&); \
  }
NPU_DECLARE_TILES(avx512_bf16)
NPU_DECLARE_TILES(amx)
#undef NPU_DECLARE_TILES

namespace avx512 {
template <typename T>
void npu_forward(const NpuForward<T>&, const Parallel&);
template <typename T>
void npu_backward(const NpuBackward<T>&, const Parallel&);
}  // namespace avx512

// One model of several.
inline NpuInputs<float> one_model(NpuInputs<float> in, int64_t model) {
  const int64_t weights = model * in.out * in.in;
  if (!in.shared_x) in.x += model * in.rows * in.in;
  in.weight_re += weights;
  if (in.weight_im != nullptr) in.weight_im += weights;
  if (in.gate != nullptr) in.gate += model * in.in;
  in.models = 1;
  return in;
}

}  // namespace npu
