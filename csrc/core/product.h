// The matrix product of panels, for layers that are made of several: a register's lanes are rows (sums over features)
// or inputs (sums over rows).
#pragma once

#include <algorithm>
#include <utility>

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
constexpr int64_t kLanes = kRegisters * Simd<T>::width;
constexpr int64_t kBlockRows = 64;  // taken up together by a sum over rows: a multiple of every tile's rows

// total[r][n] += sum_k panel[k][register r] packed[k][n], in runs of kRun.
template <typename T, int R>
NPU_INLINE void add_product(const T* panel, int64_t stride, const T* packed, int64_t count,
                            typename Simd<T>::Reg (&total)[R][kColumns]) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  for (int64_t k0 = 0; k0 < count; k0 += kRun) {
    Reg run[R][kColumns] = {};
    for (int64_t k = k0; k < min(count, k0 + kRun); ++k, panel += stride, packed += kColumns) {
      Reg lanes[R];
      for (int r = 0; r < R; ++r) lanes[r] = S::load(panel + r * S::width);
      for (int n = 0; n < kColumns; ++n) {
        const Reg factor = S::set1(packed[n]);
        for (int r = 0; r < R; ++r) run[r][n] = S::fma(lanes[r], factor, run[r][n]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < kColumns; ++n) total[r][n] = total[r][n] + run[r][n];
  }
}

// The second operand of add_product from element (column, k) at p[column * by_column + k * by_k]:
// [columns / kColumns][k][kColumns], the last tile filled up with zeros.
template <typename T>
void pack(const T* p, int64_t columns, int64_t by_column, int64_t count, int64_t by_k, T* packed) {
  using S = Simd<T>;
  for (int64_t c0 = 0; c0 < columns; c0 += kColumns) {
    const int valid = int(min<int64_t>(kColumns, columns - c0));
    int64_t k = 0;
    // Columns along registers: transposed.
    for (; k + S::width <= count && by_k == 1 && kColumns <= S::width; k += S::width) {
      typename S::Reg transposed[S::width];
      load_columns<T>(p + c0 * by_column + k, by_column, valid, S::width, transposed);
      for (int l = 0; l < S::width; ++l, packed += kColumns) S::store_first(packed, transposed[l], kColumns);
    }
    for (; k < count; ++k, packed += kColumns) {
      const T* from = p + c0 * by_column + k * by_k;
      if (by_column == 1 && kColumns <= S::width) {
        S::store_first(packed, S::load_first(from, valid), kColumns);
        continue;
      }
      for (int c = 0; c < kColumns; ++c) packed[c] = T(0);
      for (int c = 0; c < valid; ++c) packed[c] = from[c * by_column];
    }
  }
}

// total[o][i] += sum over rows of packed[row][o] panel[row][i], for R registers of inputs from i on and all outputs.
template <typename T, int R>
NPU_INLINE void add_sums_tile(const T* panel, int64_t stride, int64_t i, int64_t in, const T* packed, int64_t o,
                              int64_t out, int64_t rows, T* total) {
  using S = Simd<T>;
  constexpr int W = S::width;
  typename S::Reg tile[R][kColumns] = {};
  add_product<T>(panel + i, stride, packed + o * rows, rows, tile);
  for (int n = 0; n < kColumns && o + n < out; ++n) {
    for (int r = 0; r < R && i + r * W < in; ++r) {
      T* at = total + (o + n) * in + i + r * W;
      const int count = int(min<int64_t>(W, in - i - r * W));
      S::store_first(at, S::load_first(at, count) + tile[r][n], count);
    }
  }
}

// The same for all inputs: rows of panel are `stride` apart and readable to the end of the last register, packed is as
// pack leaves it.
template <typename T>
void add_sums(const T* panel, int64_t stride, int64_t in, const T* packed, int64_t out, int64_t rows, T* total) {
  for (int64_t o = 0; o < out; o += kColumns) {
    for (int64_t i = 0; i < in; i += kLanes<T>) {
      if (in - i > Simd<T>::width) add_sums_tile<T, kRegisters>(panel, stride, i, in, packed, o, out, rows, total);
      else add_sums_tile<T, 1>(panel, stride, i, in, packed, o, out, rows, total);
    }
  }
}

// One of the products that a tile makes at once: of which panel and which factors, and the sum that it joins.
template <int of_panel, int of_factor, int of_sum>
struct Product {
  static constexpr int panel = of_panel, factor = of_factor, sum = of_sum;
};

// Columns of such a tile. With 16 registers its products are made one after the other.
constexpr int kFewColumns = 4;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kAtOnce = true;
#else
constexpr bool kAtOnce = false;
#endif

// Calls f with each of 0 to count - 1 as a type: the compiler need not unroll a loop to know an array's elements.
template <int... n, typename F>
NPU_INLINE void each_of(std::integer_sequence<int, n...>, F&& f) {
  (f(std::integral_constant<int, n>{}), ...);
}
template <int count, typename F>
NPU_INLINE void each(F&& f) {
  each_of(std::make_integer_sequence<int, count>{}, f);
}

// sums[s][n][register r] = or (resume) += sum over k < count of panels[p][k][register r] factors[f][k][n], over all
// Products. A panel's k are `stride` apart, factor (k, n) lies at k * by_k + n * by_column, the sums of a column at
// to + s * next_sum + n * next_column. A function of its own: inlined, GCC keeps sums on the stack.
template <typename T, int R, typename... Products, int P, int F>
NPU_NOINLINE void add_tile(const T* const (&panels)[P], int64_t stride, const T* const (&factors)[F], int64_t by_k,
                           int64_t by_column, int64_t count, bool resume, T* to, int64_t next_sum,
                           int64_t next_column) {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  constexpr int N = kFewColumns, kSums = std::max({Products::sum...}) + 1;
  Reg sums[kSums][N][R];
  const auto each_sum = [](auto&& f) __attribute__((always_inline)) {
    each<kSums * N * R>([&](auto i) __attribute__((always_inline)) {
      constexpr int s = decltype(i)::value / (N * R), n = decltype(i)::value / R % N, r = decltype(i)::value % R;
      f(std::integral_constant<int, s>{}, std::integral_constant<int, n>{}, std::integral_constant<int, r>{});
    });
  };
  each_sum([&](auto s, auto n, auto r) __attribute__((always_inline)) { sums[s][n][r] = S::zero(); });
  const T *panel[P], *factor[F];
  each<P>([&](auto p) __attribute__((always_inline)) { panel[p] = panels[p]; });
  each<F>([&](auto f) __attribute__((always_inline)) { factor[f] = factors[f]; });
  for (int64_t k = 0, at = 0, by = 0; k < count; ++k, at += stride, by += by_k) {
    Reg lanes[P][R];
    each<P * R>([&](auto i) __attribute__((always_inline)) {
      lanes[i / R][i % R] = S::load(panel[i / R] + at + i % R * S::width);
    });
    each<N>([&](auto n) __attribute__((always_inline)) {
      Reg all[F];
      each<F>([&](auto f) __attribute__((always_inline)) { all[f] = S::set1(factor[f][by + n * by_column]); });
      const auto add = [&](auto of) __attribute__((always_inline)) {
        each<R>([&](auto r) __attribute__((always_inline)) {
          S::accumulate(sums[of.sum][n][r], lanes[of.panel][r], all[of.factor]);
        });
      };
      (add(Products{}), ...);
    });
  }
  each_sum([&](auto s, auto n, auto r) __attribute__((always_inline)) {
    T* at = to + s * next_sum + n * next_column + r * S::width;
    S::store(at, resume ? S::load(at) + sums[s][n][r] : sums[s][n][r]);
  });
}

template <typename T, int R, typename... Products, int P, int F>
NPU_INLINE void add_products(const T* const (&panels)[P], int64_t stride, const T* const (&factors)[F], int64_t by_k,
                             int64_t by_column, int64_t count, bool resume, T* to, int64_t next_sum,
                             int64_t next_column) {
  if constexpr (kAtOnce) {
    add_tile<T, R, Products...>(panels, stride, factors, by_k, by_column, count, resume, to, next_sum, next_column);
  } else {
    unsigned begun = resume ? ~0u : 0;  // a bit for each sum
    const auto add = [&](auto of) {
      const T* const panel[] = {panels[of.panel]};
      const T* const factor[] = {factors[of.factor]};
      add_tile<T, R, Product<0, 0, 0>>(panel, stride, factor, by_k, by_column, count, begun >> of.sum & 1,
                                       to + of.sum * next_sum, 0, next_column);
      begun |= 1u << of.sum;
    };
    (add(Products{}), ...);
  }
}

// Terms that an accumulator adds up, at most: their panels stay in the first-level cache while all rows pass over them.
constexpr int64_t kTerms = 64;

// Elements of a weight matrix [out][in] as a panel of add_products, whose terms are inputs: [outputs / kLanes][inputs]
// [kLanes]; or (over_outputs) outputs: [inputs / kLanes][outputs][kLanes].
template <typename T>
int64_t panel_size(int64_t in, int64_t out, bool over_outputs) {
  return over_outputs ? round_up(in, kLanes<T>) * out : round_up(out, kLanes<T>) * in;
}
template <typename T>
void pack_panel(const T* weight, int64_t in, int64_t out, bool over_outputs, T* panel) {
  using S = Simd<T>;
  for (int64_t o = 0; !over_outputs && o < out; o += kLanes<T>)
    transpose<T>(weight + o * in, in, min(kLanes<T>, out - o), kRegisters, panel + o * in);
  for (int64_t i = 0; over_outputs && i < in; i += kLanes<T>) {
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t l = 0; l < kLanes<T>; l += S::width) {
        const int valid = int(max<int64_t>(0, min<int64_t>(S::width, in - i - l)));
        S::store(panel + i * out + o * kLanes<T> + l,
                 valid > 0 ? S::load_first(weight + o * in + i + l, valid) : S::zero());
      }
    }
  }
}

// sums [sum][kBlockRows][kLanes] of some rows, whose factors lie `stride` apart, or (resume) added to these; lanes: how
// many of kLanes are wanted.
template <typename T, typename... Products, int P, int F>
void multiply_rows(const T* const (&panels)[P], const T* const (&factors)[F], int64_t stride, int64_t count,
                   int64_t rows, int64_t lanes, T* sums, bool resume = false) {
  int64_t k = 0;
  do {
    const int64_t terms = min(kTerms, count - k);
    const T *panel[P], *factor[F];
    for (int p = 0; p < P; ++p) panel[p] = panels[p] + k * kLanes<T>;
    for (int64_t row = 0; row < rows; row += kFewColumns) {
      for (int f = 0; f < F; ++f) factor[f] = factors[f] + row * stride + k;
      const auto add = [&](auto registers) {
        add_products<T, decltype(registers)::value, Products...>(panel, kLanes<T>, factor, 1, stride, terms,
                                                                 resume || k > 0, sums + row * kLanes<T>,
                                                                 kBlockRows * kLanes<T>, kLanes<T>);
      };
      if (lanes > Simd<T>::width) add(std::integral_constant<int, 2>{});
      else add(std::integral_constant<int, 1>{});
    }
    k += kTerms;
  } while (k < count);
}

}  // namespace NPU_ISA
}  // namespace npu
