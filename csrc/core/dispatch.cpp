// Settings of the process: the instruction set, the best of this processor unless set_isa names a lower one, and the
// precision of float32 products.
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

#include "layers.h"
#if defined(NPU_AVX512_BF16)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "npu/limits.h"
#include "npu/tiled.h"
#endif

namespace npu {

#define NPU_DECLARE_LAYER(layer, Layer)                            \
  template <typename T>                                            \
  void layer##_forward(const Layer##Forward<T>&, const Parallel&); \
  template <typename T>                                            \
  void layer##_backward(const Layer##Backward<T>&, const Parallel&);
#define NPU_ENTRIES(layer, Layer) layer##_forward<T>, layer##_backward<T>,

#define NPU_DECLARE(isa)                                                                                          \
  namespace isa {                                                                                                 \
  NPU_FAMILIES(NPU_DECLARE_LAYER)                                                                                 \
  NPU_DECLARE_LAYER(mse, Mse)                                                                                     \
  NPU_DECLARE_LAYER(ode, Ode)                                                                                     \
  NPU_DECLARE_LAYER(ode_adaptive, OdeAdaptive)                                                                    \
  template <typename T>                                                                                           \
  bool npu_forward_in(NpuForwardForm, const NpuForward<T>&, const Parallel&);                                     \
  template <typename T>                                                                                           \
  bool npu_backward_in(NpuBackwardForm, const NpuBackward<T>&, const Parallel&);                                  \
  template <typename T>                                                                                           \
  bool npu_step(const NpuStep<T>&);                                                                               \
  template <typename T>                                                                                           \
  void npu_second(const NpuSecond<T>&, const Parallel&);                                                          \
  template <typename T>                                                                                           \
  void adam(const AdamStep<T>&, const Parallel&);                                                                 \
  template <typename T>                                                                                           \
  constexpr Kernels<T> table{NPU_FAMILIES(NPU_ENTRIES) npu_step<T>, npu_second<T>, NPU_ENTRIES(mse, Mse) adam<T>, \
                             NPU_ENTRIES(ode, Ode) NPU_ENTRIES(ode_adaptive, OdeAdaptive) npu_forward_in<T>,      \
                             npu_backward_in<T>};                                                                 \
  }
// CMakeLists.txt defines NPU_<instruction set> for each that is compiled.
#if defined(NPU_BASELINE)
NPU_DECLARE(baseline)
#endif
#if defined(NPU_AVX2)
NPU_DECLARE(avx2)
#endif
#if defined(NPU_AVX512)
NPU_DECLARE(avx512)
#endif

namespace {

struct Isa {
  const char* name;
  bool (*supported)();
  const Kernels<float>* single;
  const Kernels<double>* twice;
};

[[maybe_unused]] bool always() { return true; }
#if defined(NPU_AVX2) || defined(NPU_AVX512)
// The compiler's checks ask the operating system too, whether it saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
[[maybe_unused]] bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif

#if defined(NPU_AVX512_BF16)
struct Features {
  unsigned a = 0, b = 0, c = 0, d = 0;
  explicit Features(unsigned page) { __get_cpuid_count(7, page, &a, &b, &c, &d); }
};
bool has_avx512_bf16() { return has_avx512() && (Features(1).a >> 5 & 1) != 0; }

// The AVX-512 kernels with the NPU by tiles where Form::takes(inputs).
template <typename Form>
void npu_forward(const NpuForward<float>& f, const Parallel& parallel) {
  (Form::takes(f.inputs) ? Form::forward : avx512::npu_forward<float>)(f, parallel);
}
template <typename Form>
void npu_backward(const NpuBackward<float>& f, const Parallel& parallel) {
  (Form::takes(f.inputs) ? Form::backward : avx512::npu_backward<float>)(f, parallel);
}
template <typename Form>
constexpr Kernels<float> with_tiles() {
  Kernels<float> table = avx512::table<float>;
  table.npu_forward = npu_forward<Form>;
  table.npu_backward = npu_backward<Form>;
  return table;
}

struct Avx512Bf16 {
  static bool takes(const NpuInputs<float>& in) { return takes_avx512_bf16(in); }
  static constexpr auto forward = avx512_bf16::npu_forward;
  static constexpr auto backward = avx512_bf16::npu_backward;
};
constexpr Kernels<float> avx512_bf16_table = with_tiles<Avx512Bf16>();
#endif

#if defined(NPU_AMX)
// Whether the processor has tiles, the operating system saves them, and this process may use them: Linux must be asked
// for that, once for all threads.
bool has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kSaved = 3u << 17;
  if (!has_avx512_bf16() || (Features(0).d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return (low & kSaved) == kSaved && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Amx {
  static bool takes(const NpuInputs<float>& in) { return takes_amx(in); }
  static constexpr auto forward = amx::npu_forward;
  static constexpr auto backward = amx::npu_backward;
};
constexpr Kernels<float> amx_table = with_tiles<Amx>();
#endif

constexpr Isa kIsas[] = {
#if defined(NPU_BASELINE)
    {"baseline", always, &baseline::table<float>, &baseline::table<double>},
#endif
#if defined(NPU_AVX2)
    {"avx2", has_avx2, &avx2::table<float>, &avx2::table<double>},
#endif
#if defined(NPU_AVX512)
    {"avx512", has_avx512, &avx512::table<float>, &avx512::table<double>},
#endif
#if defined(NPU_AVX512_BF16)
    {"avx512_bf16", has_avx512_bf16, &avx512_bf16_table, &avx512::table<double>},
#endif
#if defined(NPU_AMX)
    {"amx", has_amx, &amx_table, &avx512::table<double>},
#endif
};

// Null where this processor has none of them.
const Isa* best() {
  const Isa* found = nullptr;
  for (const Isa& candidate : kIsas)
    if (candidate.supported()) found = &candidate;
  return found;
}

std::atomic<int (*)()> reader{nullptr};

std::atomic<const Isa*>& active() {
  static std::atomic<const Isa*> isa{best()};
  return isa;
}

const Isa& in_use() {
  const Isa* const isa = active().load(std::memory_order_relaxed);
  if (isa != nullptr) return *isa;
  throw std::runtime_error(std::string("npu_kernels: the kernels are for processors with ") + kIsas->name +
                           ", which this one lacks");
}

}  // namespace

template <>
const Kernels<float>& kernels<float>() {
  return *in_use().single;
}
template <>
const Kernels<double>& kernels<double>() {
  return *in_use().twice;
}

int float_terms() {
  int (*const read)() = reader.load(std::memory_order_relaxed);
  return read == nullptr ? 3 : read();
}
void read_float_terms_by(int (*read)()) { reader.store(read, std::memory_order_relaxed); }

const char* isa() {
  const Isa* const isa = active().load();
  return isa == nullptr ? kIsas->name : isa->name;
}

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
