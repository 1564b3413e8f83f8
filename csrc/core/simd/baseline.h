// Registers of a processor of which nothing is known, x86 without AVX2 among them: what the compiler makes of its
// vector extensions.
#pragma once

#include "simd/generic.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
struct Simd : GenericSimd<T, Simd<T>> {};

}  // namespace NPU_ISA
}  // namespace npu
