// Vectors of one instruction set, for float and double: generic.h says what they do, the instruction set's file how.
//
// This header is compiled once per instruction set (see dispatch.cpp); NPU_ISA names the namespace, so that the linker
// can never merge code of two instruction sets. Arithmetic uses the compilers' vector extensions (a + b on registers);
// only what these lack (fused multiply-add, masks, partial loads) is written per instruction set.
#pragma once

#if defined(__AVX512F__)
#include "simd/avx512.h"
#elif defined(__AVX2__)
#include "simd/avx2.h"
#elif defined(__aarch64__)
#include "simd/neon.h"
#else
#include "simd/baseline.h"
#endif
