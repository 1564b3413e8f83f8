// What every instruction set computes with registers unless it knows better: the compilers' vector extensions alone.
//
//   Simd<T>::width   lanes of a register
//   Reg, Bits        a register of T, and of integers of the same size
//   Mask             how the mask of one register lies in memory: a bit a lane with AVX-512, otherwise a lane of bits
//
// `Isa` is the Simd of an instruction set, which inherits from this and hides the functions that its instructions do
// better. Only such functions are called through it.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "simd/registers.h"

namespace npu {
namespace NPU_ISA {

template <typename T, typename Isa>
struct GenericSimd {
  using Reg = typename SimdTypes<T>::Reg;
  using Bits = typename SimdTypes<T>::Bits;
  using UnsignedBits = typename SimdTypes<T>::UnsignedBits;
  using Int = typename SimdTypes<T>::Int;
  using Mask = typename SimdTypes<T>::Mask;
  static constexpr int width = NPU_VECTOR_BYTES / sizeof(T);
  static constexpr bool single = std::is_same<T, float>::value;
  static constexpr Int kSignBit = std::numeric_limits<Int>::min();

  static NPU_INLINE Reg zero() { return Reg{}; }

  static NPU_INLINE Reg set1(T v) {
    Reg r;
    for (int l = 0; l < width; ++l) r[l] = v;
    return r;
  }

  static NPU_INLINE Reg load(const T* p) {
    Reg r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  static NPU_INLINE void store(T* p, Reg r) { std::memcpy(p, &r, sizeof r); }

  static constexpr bool stores_masked = false;
  // The first n <= width lanes; the others read as zero. Never touches memory behind p + n.
  static NPU_INLINE Reg load_first(const T* p, int n) {
    if (n == width) return load(p);
    T lanes[width] = {};
    for (int l = 0; l < n; ++l) lanes[l] = p[l];
    return load(lanes);
  }
  static NPU_INLINE void store_first(T* p, Reg r, int n) {
    if (n == width) return store(p, r);
    T lanes[width];
    store(lanes, r);
    for (int l = 0; l < n; ++l) p[l] = lanes[l];
  }

  // The same for a number that is known: of a shorter register, which crosses fewer cache lines.
  template <int n>
  static NPU_INLINE void store_first(T* p, Reg r) {
    store_first(p, r, n);
  }

  // a * b + c; one rounding where the instruction set has it.
  static NPU_INLINE Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }

  // acc += a * b.
  static NPU_INLINE void accumulate(Reg& acc, Reg a, Reg b) { acc = Isa::fma(a, b, acc); }

  // a * b + c for range reductions, which are wrong if the product is rounded: exact but for the rounding of the
  // result. Not by the C library's fma: where the processor has none, it takes 30 times as long as this.
  static NPU_INLINE Reg fma_exact(Reg a, Reg b, Reg c) {
    if constexpr (single) {
      typedef double Wide __attribute__((vector_size(2 * NPU_VECTOR_BYTES)));
      const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);  // exact
      return __builtin_convertvector(product + __builtin_convertvector(c, Wide), Reg);
    } else {
      // Dekker's product and Knuth's sum: what they round off is known. Not for products of 2^996 and more.
      const Reg product = a * b, sum = product + c, a_high = high_half(a), b_high = high_half(b);
      const Reg a_low = a - a_high, b_low = b - b_high;
      const Reg off_product = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low);
      const Reg added = sum - product;
      const Reg off = ((product - (sum - added)) + (c - added)) + off_product;
      return select(off == zero(), sum, sum + off);  // -0 stays
    }
  }

  static NPU_INLINE Bits set1_bits(Int v) { return Bits{} + v; }
  static NPU_INLINE Reg select(Bits condition, Reg a, Reg b) { return condition ? a : b; }
  // a where n is odd, b where it is even.
  static NPU_INLINE Reg select_odd(Bits n, Reg a, Reg b) { return select((n & set1_bits(1)) != set1_bits(0), a, b); }
  // v, negated where the highest bit of `flip` is set.
  static NPU_INLINE Reg negate_where(Bits flip, Reg v) { return (Reg)((Bits)v ^ (flip & set1_bits(kSignBit))); }
  // v within [low, high]; nan stays nan.
  static NPU_INLINE Reg bounded(Reg v, Reg low, Reg high) {
    v = select(v > high, high, v);
    return select(v < low, low, v);
  }
  // v where x > 0, -v where x < 0, x v at 0 and nan.
  static NPU_INLINE Reg with_sign_of(Reg v, Reg x) { return select(x > zero(), v, select(x < zero(), -v, x * v)); }
  // Whether any bit of any lane is set.
  static NPU_INLINE bool any(Bits condition) {
    Int r = 0;
    for (int l = 0; l < width; ++l) r |= condition[l];
    return r != 0;
  }
  // The mask as a register, a lane of ones where it is set.
  static NPU_INLINE Bits lanes(const Mask& mask) {
    Bits bits;
    std::memcpy(&bits, mask.lane, sizeof bits);
    return bits;
  }

  static NPU_INLINE Reg abs(Reg a) { return (Reg)((Bits)a & set1_bits(~kSignBit)); }

  // Whether a < b, or a == b, in any lane. As masks: of a vector of conditions the compiler makes a masked load of
  // ones. It costs some 10 ns where the mask is empty and nothing has touched the page of the ones yet.
  static NPU_INLINE bool any_less(Reg a, Reg b) { return Isa::any(a < b); }
  static NPU_INLINE bool any_equal(Reg a, Reg b) { return Isa::any(a == b); }

  // Stores the mask of x < 0 and returns whether any lane has it. -0 and nan are not negative.
  static NPU_INLINE bool store_negative(Mask* mask, Reg x) {
    const Bits negative = x < zero();
    std::memcpy(mask->lane, &negative, sizeof negative);
    return Isa::any(negative);
  }

  // `marks`, with bit n set where x < 0. n is below 4: one of a group (group_size).
  static NPU_INLINE Bits mark_negative(Bits marks, Reg x, int n) {
    static constexpr Int kBit[] = {1, 2, 4, 8};  // a load from memory; a shift's result would have to be moved
    return marks | ((x < zero()) & set1_bits(kBit[n]));
  }
  // Whether any lane has any mark.
  static NPU_INLINE bool any_mark(Bits marks) { return Isa::any(marks); }

  // to = from. For an inner loop: GCC would load by way of a scalar register.
  static NPU_INLINE void load_mask(Mask& to, const Mask& from) { to = from; }

  // acc + v in the lanes of the mask, acc in the others.
  static NPU_INLINE Reg add_masked(Reg acc, const Mask& mask, Reg v) { return acc + (Reg)(lanes(mask) & (Bits)v); }

  // acc * v in the lanes of the mask, acc in the others.
  static NPU_INLINE Reg multiply_masked(Reg acc, const Mask& mask, Reg v) {
    return acc * select(lanes(mask), v, Isa::set1(1));
  }

  // Inputs whose signs select one entry of a register of partial sums (2^group_size <= width, with a permute by lane).
  // 0: the instruction set has no such permute, or (NEON) one of so few lanes that it saves nothing.
  static constexpr int group_size = 0;

  // Lane l is table[index[l]].
  static NPU_INLINE Reg lookup(Reg table, Bits index) {
    (void)index;
    return table;
  }

  // Lane e is the sum of the terms whose bit is set in e: all partial sums of 1 to group_size terms, `stride` apart.
  static NPU_INLINE Reg partial_sums(const T* terms, int64_t stride, int count) {
    Reg sums = zero();
    alignas(NPU_VECTOR_BYTES) static constexpr Int kLane[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    Bits lane;
    std::memcpy(&lane, kLane, sizeof lane);
    for (int j = 0; j < count; ++j) {
      const Bits has = (lane & set1_bits(Int(1) << j)) != set1_bits(0);
      sums = sums + (Reg)((Bits)Isa::set1(terms[j * stride]) & has);
    }
    return sums;
  }

  // The same in two steps, for many groups of four terms that lie beside each other: of every four lanes 0, the first,
  // the second, both; and from these, and from the terms, those of four.
  static constexpr bool sums_pairs = false;

  template <int... L>
  static NPU_INLINE Reg pick(Reg a, Reg b, std::integer_sequence<int, L...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, L...);
#else
    return __builtin_shuffle(a, b, Bits{L...});
#endif
  }
  // Lanes with bit `step` clear come from a, the others from b's lane `step` lower: one half of a 2 x 2 block
  // transpose.
  template <int step, int... L>
  static NPU_INLINE Reg merge_low(Reg a, Reg b, std::integer_sequence<int, L...>) {
    return pick(a, b, std::integer_sequence<int, ((L & step) ? width + L - step : L)...>{});
  }
  template <int step, int... L>
  static NPU_INLINE Reg merge_high(Reg a, Reg b, std::integer_sequence<int, L...>) {
    return pick(a, b, std::integer_sequence<int, ((L & step) ? width + L : L + step)...>{});
  }

  // `count` columns that lie row by row, in as many registers, to one register a column; and the reverse. Every result
  // takes count - 1 permutes of two registers: fewer than a transpose up to max_zipped columns.
  static constexpr int max_zipped = 2;
  template <int count>
  static NPU_INLINE void unzip(const Reg* rows, Reg* columns) {
    unzip_each(rows, columns, std::make_integer_sequence<int, count>{});
  }
  template <int count>
  static NPU_INLINE void zip(const Reg* columns, Reg* rows) {
    zip_each(columns, rows, std::make_integer_sequence<int, count>{});
  }

  // In place transpose of `count` registers, whose lanes are blocks of so many, by log2(count) rounds of 2 x 2 block
  // swaps: lane l of a block of the n-th register becomes lane n of that block of the l-th.
  template <int count = width>
  static NPU_INLINE void transpose(Reg* r) {
    transpose_step<1, count>(r);
  }

  // Lane n of the result is the sum of the lanes of r[n], for n < width: the same rounds, adding instead of keeping.
  static NPU_INLINE Reg sum_each(Reg* r) { return sum_step<1>(r); }

 private:
  using Lanes = std::make_integer_sequence<int, width>;

  // Of doubles: the upper 26 bits of the significand, by Veltkamp. The other 27 fit in 26 with a sign.
  static NPU_INLINE Reg high_half(Reg v) {
    const Reg scaled = set1(134217729) * v;  // 2^27 + 1
    return scaled - (scaled - v);
  }

  template <int... C>
  static NPU_INLINE void unzip_each(const Reg* rows, Reg* columns, std::integer_sequence<int, C...>) {
    ((columns[C] = unzip_one<int(sizeof...(C)), C, 1>(pick_row<int(sizeof...(C)), C>(rows, Lanes{}), rows)), ...);
  }
  // Lane l of a column is element l * count + column of the rows: the first two registers' at once, then one by one.
  template <int count, int column, int... L>
  static NPU_INLINE Reg pick_row(const Reg* rows, std::integer_sequence<int, L...>) {
    return pick(rows[0], rows[1], std::integer_sequence<int, ((L * count + column) % (2 * width))...>{});
  }
  template <int count, int column, int done>
  static NPU_INLINE Reg unzip_one(Reg found, const Reg* rows) {
    if constexpr (done + 1 < count)
      return unzip_one<count, column, done + 1>(add_row<count, column, done + 1>(found, rows[done + 1], Lanes{}), rows);
    else return found;
  }
  template <int count, int column, int row, int... L>
  static NPU_INLINE Reg add_row(Reg found, Reg more, std::integer_sequence<int, L...>) {
    return pick(found, more,
                std::integer_sequence<int, ((L * count + column) / width == row ? width + (L * count + column) % width
                                                                                : L)...>{});
  }

  template <int... R>
  static NPU_INLINE void zip_each(const Reg* columns, Reg* rows, std::integer_sequence<int, R...>) {
    ((rows[R] = zip_one<int(sizeof...(R)), R, 1>(pick_column<int(sizeof...(R)), R>(columns, Lanes{}), columns)), ...);
  }
  // Lane l of a register of rows is lane e / count of column e % count, where e is its element row * width + l.
  template <int count, int row, int... L>
  static NPU_INLINE Reg pick_column(const Reg* columns, std::integer_sequence<int, L...>) {
    return pick(
        columns[0], columns[1],
        std::integer_sequence<int, ((row * width + L) / count + ((row * width + L) % count == 1 ? width : 0))...>{});
  }
  template <int count, int row, int done>
  static NPU_INLINE Reg zip_one(Reg found, const Reg* columns) {
    if constexpr (done + 1 < count)
      return zip_one<count, row, done + 1>(add_column<count, row, done + 1>(found, columns[done + 1], Lanes{}),
                                           columns);
    else return found;
  }
  template <int count, int row, int column, int... L>
  static NPU_INLINE Reg add_column(Reg found, Reg more, std::integer_sequence<int, L...>) {
    return pick(
        found, more,
        std::integer_sequence<int, ((row * width + L) % count == column ? width + (row * width + L) / count : L)...>{});
  }

  template <int step, int count>
  static NPU_INLINE void transpose_step(Reg* r) {
    for (int n = 0; n < count; ++n) {
      if (n & step) continue;
      const Reg a = r[n], b = r[n + step];
      r[n] = merge_low<step>(a, b, Lanes{});
      r[n + step] = merge_high<step>(a, b, Lanes{});
    }
    if constexpr (2 * step < count) transpose_step<2 * step, count>(r);
  }

  template <int step>
  static NPU_INLINE Reg sum_step(Reg* r) {
    for (int n = 0; n < width; n += 2 * step)
      r[n] = merge_low<step>(r[n], r[n + step], Lanes{}) + merge_high<step>(r[n], r[n + step], Lanes{});
    if constexpr (2 * step < width) return sum_step<2 * step>(r);
    else return r[0];
  }
};

}  // namespace NPU_ISA
}  // namespace npu
