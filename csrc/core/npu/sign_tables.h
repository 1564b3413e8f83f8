// Mask products by tables in memory, for 16 registers of eight or four lanes: the signs of a group of four x select one
// of the 16 partial sums of what belongs to them, so that one addition does what four multiply-adds would. A permute by
// lane (Simd::lookup) takes the place of three there, and is slow on AMD's processors.
#pragma once

#include "panel.h"

namespace npu {
namespace NPU_ISA {

constexpr int kSigns = 4;  // of a group

// The tables of sums of `parts` registers each, [groups][entries][parts].
template <typename T, int parts>
struct SignTables {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int entries = 1 << kSigns;
  static constexpr int entry = parts * S::width, size = entries * entry;  // elements

  // One part of a table: of the first `count` terms, which `term` gives. Entry e sums the terms whose bit is set in e.
  template <typename Term>
  static NPU_INLINE void fill(T* table, int count, const Term& term) {
    Reg sums[entries];
    sums[0] = S::zero();
    S::store(table, sums[0]);
    for (int n = 0; n < count; ++n) {
      const Reg added = term(n);
      for (int e = 0; e < 1 << n; ++e) {
        sums[(1 << n) + e] = sums[e] + added;
        S::store(table + ((1 << n) + e) * entry, sums[(1 << n) + e]);
      }
    }
  }

  // Where the entry of some signs begins, in its table.
  static NPU_INLINE uint8_t offset(unsigned signs) {
    static_assert((entries - 1) * entry < 256);
    return uint8_t(signs * entry);
  }
};

}  // namespace NPU_ISA
}  // namespace npu
