// Panels: blocks of rows transposed so that a register holds one feature of `width` rows.
//
// Every kernel works on such panels: products then need no horizontal step, any number of features is as good as any
// other (the field's layers have 2 to 100), and exp, log and sincos run on full registers whatever the layer's size.
#pragma once

#include "api.h"
#include "scratch.h"
#include "simd/simd.h"

namespace npu {
namespace NPU_ISA {

// Terms that one accumulator adds up before it joins the total: rounding errors then grow with the root of the number
// of runs, not of the number of terms. A multiple of the group sizes in simd/simd.h.
constexpr int64_t kRun = 24;

// Uninitialised scratch, aligned to a cache line.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : bytes_((size_t(count) * sizeof(T) + 127) / 64 * 64), data_(static_cast<T*>(take_scratch(bytes_))) {}
  ~Scratch() { give_back_scratch(data_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  operator T*() const { return data_; }

 private:
  const size_t bytes_;
  T* const data_;
};

// nan stays nan, as in torch.clamp.
template <typename T>
NPU_INLINE T clamp_gate(T g) {
  return g < T(0) ? T(0) : (g > T(1) ? T(1) : g);
}
template <typename T>
NPU_INLINE T clip_weight(T w) {
  return w < T(-1) ? T(-1) : (w > T(1) ? T(1) : w);
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
template <typename V>
constexpr NPU_INLINE V min(V a, V b) {
  return b < a ? b : a;
}
template <typename V>
constexpr NPU_INLINE V max(V a, V b) {
  return a < b ? b : a;
}

// Calls f with n as a type, if it is one of min_n to max_n; returns whether it is.
template <int min_n, int max_n, typename F>
NPU_INLINE bool with_constant(int64_t n, F&& f) {
  if constexpr (min_n <= max_n) {
    if (n != min_n) return with_constant<min_n + 1, max_n>(n, f);
    f(std::integral_constant<int, min_n>{});
    return true;
  }
  return false;
}

// Calls f with the number of columns as a type where they are the rows' only ones and few enough to be zipped.
template <typename T, typename F>
NPU_INLINE bool zipped(int64_t row_stride, int count, F&& f) {
  return count == row_stride && with_constant<2, Simd<T>::max_zipped>(count, f);
}

// The elements of the n-th register of `rows` rows.
template <typename T>
NPU_INLINE int elements(int rows, int columns, int n) {
  return max(0, min(rows * columns - n * Simd<T>::width, Simd<T>::width));
}

// The columns of a whole block, `width` rows of as many columns, and the reverse. Without a condition for each row and
// column the compiler transposes it in registers. A block of 16 x 16 needs a function of its own for that, smaller ones
// are faster inlined (measured).
template <typename T>
NPU_INLINE void load_square_inline(const T* p, int64_t row_stride, typename Simd<T>::Reg* columns) {
  using S = Simd<T>;
  typename S::Reg block[S::width];
  for (int r = 0; r < S::width; ++r) block[r] = S::load(p + r * row_stride);
  S::transpose(block);
  for (int c = 0; c < S::width; ++c) columns[c] = block[c];
}
template <typename T>
NPU_INLINE void store_square_inline(T* p, int64_t row_stride, const typename Simd<T>::Reg* columns) {
  using S = Simd<T>;
  typename S::Reg block[S::width];
  for (int c = 0; c < S::width; ++c) block[c] = columns[c];
  S::transpose(block);
  for (int r = 0; r < S::width; ++r) S::store(p + r * row_stride, block[r]);
}
template <typename T>
NPU_NOINLINE void load_square(const T* p, int64_t row_stride, typename Simd<T>::Reg* columns) {
  load_square_inline<T>(p, row_stride, columns);
}
template <typename T>
NPU_NOINLINE void store_square(T* p, int64_t row_stride, const typename Simd<T>::Reg* columns) {
  store_square_inline<T>(p, row_stride, columns);
}

// Fetches a part of up to a register of rows into the second-level cache: as many elements as `count` of their columns
// have. Calls for all columns fetch all of the rows in the order of their addresses, which is faster than the lines of
// one column after those of another.
template <typename T>
NPU_INLINE void fetch_part(const T* first, int64_t rows, int64_t step, int64_t column, int64_t count) {
  constexpr int64_t W = Simd<T>::width, kLine = 64 / int64_t(sizeof(T));
  const int64_t end = min((column + count) * W, rows * step);
  for (int64_t n = column * W; n < end; n += kLine) __builtin_prefetch(first + n, 0, 2);
}

// Fetches the rows behind a block of rows while one register of columns after the other passes over the block: at each
// row of the register that begins with the i-th column, one register of elements, in the order of their addresses.
// kLevel is the cache that gets them; a null block fetches nothing.
template <typename T, int kLevel, bool kWritten = false>
class NextRows {
 public:
  NextRows(const T* block, int64_t rows, int64_t columns, int64_t i)
      : at_(block == nullptr ? nullptr : block + rows * (columns + i)) {}
  NPU_INLINE void fetch() {
    if (at_ == nullptr) return;
    __builtin_prefetch(at_, kWritten, 4 - kLevel);
    at_ += Simd<T>::width;
  }

 private:
  const T* at_;
};

// columns[c] = the c-th of `count` <= width columns of `rows` <= width rows at p; what lies outside reads as zero.
template <typename T>
NPU_INLINE void load_columns_inline(const T* p, int64_t row_stride, int rows, int count,
                                    typename Simd<T>::Reg* columns) {
  using S = Simd<T>;
  constexpr int W = S::width;
  if (count == 1 && row_stride == 1) {
    columns[0] = S::load_first(p, rows);
    return;
  }
  const auto unzip = [&](auto c) __attribute__((always_inline)) {
    constexpr int C = decltype(c)::value;
    typename S::Reg block[C];
    for (int n = 0; n < C; ++n)
      block[n] = rows == W ? S::load(p + n * W) : S::load_first(p + n * W, elements<T>(rows, C, n));
    S::template unzip<C>(block, columns);
  };
  if (zipped<T>(row_stride, count, unzip)) return;
  if (4 * count <= W) {
    alignas(64) T lanes[W / 4 ? W / 4 : 1][W] = {};
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < count; ++c) lanes[c][r] = p[r * row_stride + c];
    for (int c = 0; c < count; ++c) columns[c] = S::load(lanes[c]);
    return;
  }
  if (rows == W && count == W)
    return W < 16 ? load_square_inline<T>(p, row_stride, columns) : load_square<T>(p, row_stride, columns);
  typename S::Reg block[W];
  for (int r = 0; r < W; ++r) {
    const T* row = p + r * row_stride;
    block[r] = r < rows ? S::load_first(row, count) : S::zero();
  }
  S::transpose(block);
  for (int c = 0; c < W; ++c)
    if (c < count) columns[c] = block[c];
}

// The same as a function. Inlined it is kilobytes, which take seconds to compile and gain one to six percent in small
// layers.
template <typename T>
NPU_NOINLINE void load_columns(const T* p, int64_t row_stride, int rows, int count, typename Simd<T>::Reg* columns) {
  load_columns_inline<T>(p, row_stride, rows, count, columns);
}

// The reverse: the first `rows` lanes of `count` columns into rows at p.
template <typename T>
NPU_INLINE void store_columns_inline(T* p, int64_t row_stride, int rows, int count,
                                     const typename Simd<T>::Reg* columns) {
  using S = Simd<T>;
  constexpr int W = S::width;
  if (count == 1 && row_stride == 1) {
    S::store_first(p, columns[0], rows);
    return;
  }
  const auto zip = [&](auto c) __attribute__((always_inline)) {
    constexpr int C = decltype(c)::value;
    typename S::Reg block[C];
    S::template zip<C>(columns, block);
    if (rows == W)
      for (int n = 0; n < C; ++n) S::store(p + n * W, block[n]);
    else
      for (int n = 0; n < C; ++n) S::store_first(p + n * W, block[n], elements<T>(rows, C, n));
  };
  if (zipped<T>(row_stride, count, zip)) return;
  if (4 * count <= W) {
    alignas(64) T lanes[W / 4 ? W / 4 : 1][W];
    for (int c = 0; c < count; ++c) S::store(lanes[c], columns[c]);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < count; ++c) p[r * row_stride + c] = lanes[c][r];
    return;
  }
  if (rows == W && count == W)
    return W < 16 ? store_square_inline<T>(p, row_stride, columns) : store_square<T>(p, row_stride, columns);
  typename S::Reg block[W];
  for (int c = 0; c < W; ++c) block[c] = c < count ? columns[c] : S::zero();
  S::transpose(block);
  for (int r = 0; r < rows; ++r) S::store_first(p + r * row_stride, block[r], count);
}

template <typename T>
NPU_NOINLINE void store_columns(T* p, int64_t row_stride, int rows, int count, const typename Simd<T>::Reg* columns) {
  store_columns_inline<T>(p, row_stride, rows, count, columns);
}

// All columns of up to a register of rows. One or two are loaded, and one is stored, without a call.
template <typename T>
NPU_INLINE void load_few_columns(const T* p, int rows, int count, typename Simd<T>::Reg* columns) {
  using S = Simd<T>;
  if (count == 1) {
    columns[0] = S::load_first(p, rows);
  } else if (count == 2 && rows == S::width) {
    const typename S::Reg block[2] = {S::load(p), S::load(p + S::width)};
    S::template unzip<2>(block, columns);
  } else {
    load_columns<T>(p, count, rows, count, columns);
  }
}

template <typename T>
NPU_INLINE void store_few_columns(T* p, int rows, int count, const typename Simd<T>::Reg* columns) {
  if (count == 1) Simd<T>::store_first(p, columns[0], rows);
  else store_columns<T>(p, count, rows, count, columns);
}

// How far ahead `transpose` fetches rows, in bytes; at least a register of rows.
constexpr int64_t kFetched = int64_t(1) << 15;

// Rows from p on as [features][registers]; rows behind the last one read as zero. Some rows behind these, which may not
// exist, are fetched.
template <typename T>
void transpose(const T* p, int64_t features, int64_t rows, int64_t registers, T* panel) {
  using S = Simd<T>;
  constexpr int W = S::width;
  const int64_t ahead = min(registers, 1 + kFetched / max<int64_t>(1, W * features * int64_t(sizeof(T))));
  for (int64_t v = 0; v < registers; ++v) {
    const int valid = int(max<int64_t>(0, min<int64_t>(W, rows - v * W)));
    for (int64_t i = 0; i < features; i += W) {
      const int count = int(min<int64_t>(W, features - i));
      typename S::Reg column[W];
      fetch_part<T>(p + (v + ahead) * W * features, W, features, i, count);
      load_columns<T>(p + v * W * features + i, features, valid, count, column);
      for (int c = 0; c < count; ++c) S::store(panel + ((i + c) * registers + v) * W, column[c]);
    }
  }
}

// The reverse: the first `rows` rows of a panel to p.
template <typename T>
void transpose_back(const T* panel, int64_t features, int64_t rows, int64_t registers, T* p) {
  using S = Simd<T>;
  constexpr int W = S::width;
  for (int64_t v = 0; v * W < rows; ++v) {
    for (int64_t i = 0; i < features; i += W) {
      const int count = int(min<int64_t>(W, features - i));
      typename S::Reg column[W];
      for (int c = 0; c < count; ++c) column[c] = S::load(panel + ((i + c) * registers + v) * W);
      store_columns<T>(p + v * W * features + i, features, int(min<int64_t>(W, rows - v * W)), count, column);
    }
  }
}

}  // namespace NPU_ISA
}  // namespace npu
