// Registers, integers of the same size and masks of one instruction set; simd.h computes with them.
#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#define NPU_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define NPU_VECTOR_BYTES 32
#else
#define NPU_VECTOR_BYTES 16
#endif

#define NPU_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define NPU_NOINLINE __attribute__((noinline))
#else
#define NPU_NOINLINE __attribute__((noinline, noclone))  // GCC also makes copies of a function for known arguments
#endif

namespace npu {
namespace NPU_ISA {

template <typename T>
struct SimdTypes;

template <>
struct SimdTypes<float> {
  typedef float Reg __attribute__((vector_size(NPU_VECTOR_BYTES)));
  typedef int32_t Bits __attribute__((vector_size(NPU_VECTOR_BYTES)));
  typedef uint32_t UnsignedBits __attribute__((vector_size(NPU_VECTOR_BYTES)));
  using Int = int32_t;
#if defined(__AVX512F__)
  using Mask = uint16_t;
#else
  struct Mask {
    int32_t lane[NPU_VECTOR_BYTES / sizeof(int32_t)];
  };
#endif
};

template <>
struct SimdTypes<double> {
  typedef double Reg __attribute__((vector_size(NPU_VECTOR_BYTES)));
  typedef int64_t Bits __attribute__((vector_size(NPU_VECTOR_BYTES)));
  typedef uint64_t UnsignedBits __attribute__((vector_size(NPU_VECTOR_BYTES)));
  using Int = int64_t;
#if defined(__AVX512F__)
  using Mask = uint8_t;
#else
  struct Mask {
    int64_t lane[NPU_VECTOR_BYTES / sizeof(int64_t)];
  };
#endif
};

}  // namespace NPU_ISA
}  // namespace npu
