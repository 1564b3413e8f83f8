// All layers with CPU kernels, and the table of the kernels.
#pragma once

#include "layers/inalu.h"
#include "layers/nac.h"
#include "layers/nalu.h"
#include "layers/nau.h"
#include "layers/nmu.h"
#include "layers/npu.h"
#include "ode/adaptive_api.h"

// Families, from whose records the operators are made, by their kernels' names: X(nmu, Nmu) has nmu_forward,
// nmu_backward, NmuForward, NmuBackward and the list of records NmuFamily.
#define NPU_FAMILIES(X) X(npu, Npu) X(nmu, Nmu) X(nau, Nau) X(nac, Nac) X(nalu, Nalu) X(inalu, Inalu)

namespace npu {

// The kernels of one instruction set.
template <typename T>
struct Kernels {
#define NPU_ENTRIES(family, Name)                                     \
  void (*family##_forward)(const Name##Forward<T>&, const Parallel&); \
  void (*family##_backward)(const Name##Backward<T>&, const Parallel&);
  NPU_FAMILIES(NPU_ENTRIES)
#undef NPU_ENTRIES
  bool (*npu_step)(const NpuStep<T>&);  // false: not for this call, and nothing was done
  void (*npu_second)(const NpuSecond<T>&, const Parallel&);
  void (*mse_forward)(const MseForward<T>&, const Parallel&);
  void (*mse_backward)(const MseBackward<T>&, const Parallel&);
  void (*adam)(const AdamStep<T>&, const Parallel&);
  void (*ode_forward)(const OdeForward<T>&, const Parallel&);
  void (*ode_backward)(const OdeBackward<T>&, const Parallel&);
  void (*ode_adaptive_forward)(const OdeAdaptiveForward<T>&, const Parallel&);
  void (*ode_adaptive_backward)(const OdeAdaptiveBackward<T>&, const Parallel&);
  // The NPU in a form that need not be the fastest; false: it cannot take this layer, and nothing was done.
  bool (*npu_forward_in)(NpuForwardForm, const NpuForward<T>&, const Parallel&);
  bool (*npu_backward_in)(NpuBackwardForm, const NpuBackward<T>&, const Parallel&);
};

// Calls f with a value of each record's type.
template <typename F, typename... Layers>
void each_of(List<Layers...>, const F& f) {
  (f(Layers{}), ...);
}
template <typename F>
void each_layer(const F& f) {
#define NPU_EACH(family, Name) each_of(Name##Family{}, f);
  NPU_FAMILIES(NPU_EACH)
#undef NPU_EACH
}

}  // namespace npu
