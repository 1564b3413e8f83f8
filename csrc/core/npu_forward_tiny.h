// The forward of layers with few inputs and few outputs.
#pragma once

#include "npu_forward.h"

namespace npu {
namespace NPU_ISA {

// Everything of a register of rows at once: packed weights and panels of L would cost more than the products.
template <typename T, bool complex>
class TinyRows {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int R = 4;  // registers of rows at once

 public:
  static constexpr int64_t kMostProducts = 12;
  static constexpr int64_t kChunk = 64 * W;  // rows of a task
  static bool suits(const NpuInputs<T>& in) {
    return in.in <= W && in.out <= W && in.in * in.out <= kMostProducts && in.rows > 2 * W;
  }

  explicit TinyRows(const NpuForward<T>& f) : f_(f), in_(f.inputs) {}

  void run(int64_t model, int64_t row, int64_t end) {
    load_weights(model);
    const int64_t first = model * in_.rows;
    const T* x = in_.x + (in_.shared_x ? 0 : first) * in_.in;
    for (; row < end; row += R * W) finish(x + row * in_.in, end - row, (first + row) * in_.out);
  }

 private:
  void load_weights(int64_t model) {
    for (int64_t i = 0; i < in_.in; ++i)
      gate_[i] = in_.gate == nullptr ? T(1) : clamp_gate(in_.gate[model * in_.in + i]);
    const int64_t count = in_.out * in_.in;
    re_ = in_.weight_re + model * count;
    im_ = complex ? in_.weight_im + model * count : nullptr;
    for (int64_t o = 0, n = 0; o < in_.out; ++o) {
      for (int64_t i = 0; i < in_.in; ++i, ++n) {
        turn_[n] = T(kPi) * gate_[i] * re_[n];
        if constexpr (complex) shrink_[n] = -(T(kPi) * gate_[i]) * im_[n];
      }
    }
  }

  // y and s of some registers of rows, each step for all of them: neighbouring steps do not wait for one another.
  void finish(const T* x, int64_t rows, int64_t at) const {
    const int in = int(in_.in), out = int(in_.out);
    const Reg eps = S::set1(in_.eps);
    Reg panel[3 * R * W];  // close to one another in the first-level cache
    Reg *log_r = panel, *y = log_r + R * in, *s = y + R * out;
    typename S::Mask mask[R * W];
    bool negative = false;
    const int registers = int(least<int64_t>(R, ceil_div(rows, W)));
    for (int n = registers * in; n < R * in; ++n) log_r[n] = S::zero();
    for (int r = 0; r < registers; ++r) load_few_columns<T>(x + r * W * in, valid(rows, r), in, log_r + r * in);
    for (int n = 0; n < R * in; ++n) negative |= S::store_negative(mask + n, log_r[n]);
    for (int i = 0; i < in; ++i) {
      const Reg g = S::set1(gate_[i]), rest = S::set1(T(1)) - g;
      for (int r = 0; r < R; ++r)
        log_r[r * in + i] = VectorMath<T>::log(S::fma(g, S::abs(log_r[r * in + i]) + eps, rest));
    }
    for (int o = 0; o < out; ++o) {
      Reg p[R] = {}, q[R] = {};
      for (int i = 0, n = o * in; i < in; ++i, ++n) {
        for (int r = 0; r < R; ++r) {
          p[r] = S::fma(log_r[r * in + i], S::set1(re_[n]), p[r]);
          if constexpr (complex) q[r] = S::fma(log_r[r * in + i], S::set1(im_[n]), q[r]);
        }
      }
      for (int i = 0, n = o * in; negative && i < in; ++i, ++n) {
        for (int r = 0; r < R; ++r) {
          q[r] = S::add_masked(q[r], mask[r * in + i], S::set1(turn_[n]));
          if constexpr (complex) p[r] = S::add_masked(p[r], mask[r * in + i], S::set1(shrink_[n]));
        }
      }
      for (int r = 0; r < R; ++r) outputs<T>(p[r], q[r], y + r * out + o, s + r * out + o);
    }
    for (int r = 0; r < registers; ++r) {
      const int64_t to = at + r * W * out;
      store_few_columns<T>(f_.y + to, valid(rows, r), out, y + r * out);
      if (f_.s != nullptr) store_few_columns<T>(f_.s + to, valid(rows, r), out, s + r * out);
    }
  }

  static int valid(int64_t rows, int r) { return int(least<int64_t>(W, rows - r * W)); }

  const NpuForward<T>& f_;
  const NpuInputs<T>& in_;
  const T *re_, *im_;
  T gate_[W], turn_[kMostProducts], shrink_[kMostProducts];
};

template <typename T, bool complex>
void forward_tiny(const NpuForward<T>& f, const Parallel& parallel) {
  using Rows = TinyRows<T, complex>;
  const int64_t chunks = ceil_div(f.inputs.rows, Rows::kChunk);
  parallel.over(f.inputs.models * chunks, [&](int64_t begin, int64_t end) {
    Rows rows(f);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % chunks * Rows::kChunk;
      rows.run(task / chunks, row, least(row + Rows::kChunk, f.inputs.rows));
    }
  });
}

}  // namespace NPU_ISA
}  // namespace npu
