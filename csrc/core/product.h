// The matrix product of panels, for layers that are made of several: a register's lanes are rows (sums over features)
// or inputs (sums over rows).
#pragma once

#include "panel.h"
#include "row_groups.h"

namespace npu {
namespace NPU_ISA {

// A tile of results: registers of lanes by columns.
constexpr int kRegisters = 2;
#if defined(__AVX512F__)
constexpr int kColumns = 8;
#else
constexpr int kColumns = 4;
#endif

template <typename T>
constexpr int64_t kTileRows = kRegisters * Simd<T>::width;
constexpr int64_t kBlockRows = 64;  // taken up together by a sum over rows: a multiple of every tile's rows

// total[r][n] += sum_k panel[k][register r] packed[k][n], in runs of kRun.
template <typename T>
NPU_INLINE void add_product(const T* panel, int64_t stride, const T* packed, int64_t count,
                            typename Simd<T>::Reg (&total)[kRegisters][kColumns]) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  for (int64_t k0 = 0; k0 < count; k0 += kRun) {
    Reg run[kRegisters][kColumns] = {};
    for (int64_t k = k0; k < least(count, k0 + kRun); ++k, panel += stride, packed += kColumns) {
      Reg lanes[kRegisters];
      for (int r = 0; r < kRegisters; ++r) lanes[r] = S::load(panel + r * S::width);
      for (int n = 0; n < kColumns; ++n) {
        const Reg factor = S::set1(packed[n]);
        for (int r = 0; r < kRegisters; ++r) run[r][n] = S::fma(lanes[r], factor, run[r][n]);
      }
    }
    for (int r = 0; r < kRegisters; ++r)
      for (int n = 0; n < kColumns; ++n) total[r][n] = total[r][n] + run[r][n];
  }
}

// The second operand of add_product from element (column, k) at p[column * by_column + k * by_k]:
// [columns / kColumns][k][kColumns], the last tile filled up with zeros.
template <typename T>
void pack(const T* p, int64_t columns, int64_t by_column, int64_t count, int64_t by_k, T* packed) {
  for (int64_t c0 = 0; c0 < columns; c0 += kColumns)
    for (int64_t k = 0; k < count; ++k)
      for (int64_t c = c0; c < c0 + kColumns; ++c) *packed++ = c < columns ? p[c * by_column + k * by_k] : T(0);
}

// total[o][i] += sum over rows of packed[row][o] panel[row][i]: rows of panel `stride` apart and readable to the tile's
// end, packed as pack leaves it.
template <typename T>
void add_sums(const T* panel, int64_t stride, int64_t in, const T* packed, int64_t out, int64_t rows, T* total) {
  using S = Simd<T>;
  constexpr int W = S::width;
  for (int64_t o = 0; o < out; o += kColumns) {
    for (int64_t i = 0; i < in; i += kTileRows<T>) {
      typename S::Reg tile[kRegisters][kColumns] = {};
      add_product<T>(panel + i, stride, packed + o * rows, rows, tile);
      for (int n = 0; n < kColumns && o + n < out; ++n) {
        for (int r = 0; r < kRegisters && i + r * W < in; ++r) {
          T* at = total + (o + n) * in + i + r * W;
          const int count = int(least<int64_t>(W, in - i - r * W));
          S::store_first(at, S::load_first(at, count) + tile[r][n], count);
        }
      }
    }
  }
}

}  // namespace NPU_ISA
}  // namespace npu
