// What the processor can do at most: multiply-adds in registers alone, to be timed (peak.py compiles this file).
#include "core/simd/simd.h"
#if defined(__AMX_BF16__)
#include "core/npu/tiles.h"
#endif

namespace {

using S = npu::NPU_ISA::Simd<float>;

// Independent sums: enough for two units (Arm: four) with a latency of 4 cycles, and as many as the registers hold.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 24;
#else
constexpr int kSums = 12;
#endif

}  // namespace

extern "C" {

// Multiply-adds of float32 in vector registers; returns how many.
int64_t vector_multiply_adds(int64_t rounds) {
  volatile float half = 0.5f, one = 1.0f;  // unknown to the compiler, and different sums: it can leave none out
  const S::Reg a = S::set1(half), b = S::set1(one);
  S::Reg sums[kSums], total = S::zero();
#pragma GCC unroll 24
  for (int j = 0; j < kSums; ++j) sums[j] = S::set1(float(j) * one);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int j = 0; j < kSums; ++j) sums[j] = S::fma(sums[j], a, b);
  }
#pragma GCC unroll 24
  for (int j = 0; j < kSums; ++j) total = total + sums[j];
  [[maybe_unused]] volatile float kept = total[0];
  return rounds * kSums * S::width;
}

#if defined(__AMX_BF16__)
// Those of bfloat16 in tile registers: four independent sums of 16 cycles each, the latency being 52.
int64_t tile_multiply_adds(int64_t rounds) {
  using namespace npu::NPU_ISA;
  const tiles::Engine engine;  // shapes the tile registers
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return rounds * 4 * kTile * kTile * kTileDepth;
}
#endif

// The same for each of [begin, end), as torch's threads call it; `rounds` is an int64_t.
void vector_tasks(int64_t begin, int64_t end, void* rounds) {
  for (; begin < end; ++begin) vector_multiply_adds(*static_cast<const int64_t*>(rounds));
}
#if defined(__AMX_BF16__)
void tile_tasks(int64_t begin, int64_t end, void* rounds) {
  for (; begin < end; ++begin) tile_multiply_adds(*static_cast<const int64_t*>(rounds));
}
#endif

}  // extern "C"
