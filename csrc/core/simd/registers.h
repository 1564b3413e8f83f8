// Registers, integers of the same size and masks of one instruction set; simd/simd.h computes with them.
#pragma once

#include <cstdint>
#include <type_traits>

// CMakeLists.txt takes these options back. Not every compiler obeys, and not every build uses CMake.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "npu_kernels: fast-math changes results in silence; compile with -fno-fast-math, without any part of it"
#endif

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
struct SimdTypes {
  using Int = std::conditional_t<sizeof(T) == sizeof(int32_t), int32_t, int64_t>;
  using Unsigned = std::make_unsigned_t<Int>;
  typedef T Reg __attribute__((vector_size(NPU_VECTOR_BYTES)));
  typedef Int Bits __attribute__((vector_size(NPU_VECTOR_BYTES)));
  typedef Unsigned UnsignedBits __attribute__((vector_size(NPU_VECTOR_BYTES)));
#if defined(__AVX512F__)
  using Mask = std::conditional_t<sizeof(T) == sizeof(int32_t), uint16_t, uint8_t>;
#else
  struct Mask {
    Int lane[NPU_VECTOR_BYTES / sizeof(Int)];
  };
#endif
};

}  // namespace NPU_ISA
}  // namespace npu
