// Which instruction set: the best of this processor, unless set_isa names a lower one.
#include <atomic>
#include <cstring>
#include <string>

#include "api.h"

namespace npu {

#define NPU_DECLARE_LAYER(layer, Layer)                            \
  template <typename T>                                            \
  void layer##_forward(const Layer##Forward<T>&, const Parallel&); \
  template <typename T>                                            \
  void layer##_backward(const Layer##Backward<T>&, const Parallel&);

#define NPU_DECLARE(isa)                                                                                             \
  namespace isa {                                                                                                    \
  NPU_DECLARE_LAYER(npu, Npu)                                                                                        \
  NPU_DECLARE_LAYER(nmu, Nmu)                                                                                        \
  NPU_DECLARE_LAYER(nau, Nau)                                                                                        \
  NPU_DECLARE_LAYER(mse, Mse)                                                                                        \
  NPU_DECLARE_LAYER(inalu, Inalu)                                                                                    \
  NPU_DECLARE_LAYER(ode, Ode)                                                                                        \
  template <typename T>                                                                                              \
  void adam(const AdamStep<T>&, const Parallel&);                                                                    \
  template <typename T>                                                                                              \
  constexpr Kernels<T> table{npu_forward<T>,    npu_backward<T>, nmu_forward<T>,  nmu_backward<T>, nau_forward<T>,   \
                             nau_backward<T>,   mse_forward<T>,  mse_backward<T>, adam<T>,         inalu_forward<T>, \
                             inalu_backward<T>, ode_forward<T>,  ode_backward<T>};                                   \
  }
NPU_DECLARE(baseline)
#if defined(__x86_64__)
NPU_DECLARE(avx2)
NPU_DECLARE(avx512)
#endif

namespace {

struct Isa {
  const char* name;
  bool (*supported)();
  const Kernels<float>* single;
  const Kernels<double>* twice;
};

bool always() { return true; }
#if defined(__x86_64__)
// The compiler's checks ask the operating system too, whether it saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif

constexpr Isa kIsas[] = {
    {"baseline", always, &baseline::table<float>, &baseline::table<double>},
#if defined(__x86_64__)
    {"avx2", has_avx2, &avx2::table<float>, &avx2::table<double>},
    {"avx512", has_avx512, &avx512::table<float>, &avx512::table<double>},
#endif
};

const Isa* best() {
  const Isa* found = kIsas;
  for (const Isa& candidate : kIsas)
    if (candidate.supported()) found = &candidate;
  return found;
}

std::atomic<const Isa*>& active() {
  static std::atomic<const Isa*> isa{best()};
  return isa;
}

}  // namespace

template <>
const Kernels<float>& kernels<float>() {
  return *active().load(std::memory_order_relaxed)->single;
}
template <>
const Kernels<double>& kernels<double>() {
  return *active().load(std::memory_order_relaxed)->twice;
}

const char* isa() { return active().load()->name; }

const char* supported_isas() {
  static const std::string names = [] {
    std::string joined;
    for (const Isa& candidate : kIsas)
      if (candidate.supported()) joined += (joined.empty() ? "" : ",") + std::string(candidate.name);
    return joined;
  }();
  return names.c_str();
}

bool set_isa(const char* name) {
  for (const Isa& candidate : kIsas) {
    if (std::strcmp(candidate.name, name) != 0 || !candidate.supported()) continue;
    active().store(&candidate);
    return true;
  }
  return false;
}

}  // namespace npu
