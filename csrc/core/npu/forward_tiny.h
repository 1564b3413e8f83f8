// The forward of layers with few inputs and few outputs.
#pragma once

#include "npu/forward.h"

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
  static constexpr int kRows = R * W;

  // Of some registers of rows.
  struct Panel {
    int registers;
    bool negative;                                   // any x < 0
    Reg x[R * W], log_r[R * W], y[R * W], s[R * W];  // [R][I] and [R][O]
    typename S::Mask mask[R * W];                    // x < 0
  };

  explicit TinyRows(const NpuInputs<T>& in) : in_(in) {}

  void load_weights(int64_t model) {
    load_gate(in_, model, gate_);
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

  // y and s of the first of `rows` rows, each step for all of them: neighbouring steps do not wait for one another. x
  // behind the last row is zero.
  __attribute__((noinline)) void compute(const T* x, int64_t rows, Panel* panel) const {
    const int in = int(in_.in), out = int(in_.out);
    const Reg eps = S::set1(in_.eps);
    Reg* log_r = panel->log_r;
    panel->registers = int(min<int64_t>(R, ceil_div(rows, W)));
    panel->negative = false;
    for (int n = panel->registers * in; n < R * in; ++n) panel->x[n] = S::zero();
    for (int r = 0; r < panel->registers; ++r)
      load_few_columns<T>(x + r * W * in, valid(rows, r), in, panel->x + r * in);
    for (int n = 0; n < R * in; ++n) panel->negative |= S::store_negative(panel->mask + n, panel->x[n]);
    for (int i = 0; i < in; ++i) {
      const Gate<T> gate(S::set1(gate_[i]), eps);
      for (int n = i; n < R * in; n += in) log_r[n] = gate.log(panel->x[n]);
    }
    for (int o = 0; o < out; ++o) {
      Reg p[R] = {}, q[R] = {};
      for (int i = 0, n = o * in; i < in; ++i, ++n) {
        for (int r = 0; r < R; ++r) {
          p[r] = S::fma(log_r[r * in + i], S::set1(re_[n]), p[r]);
          if constexpr (complex) q[r] = S::fma(log_r[r * in + i], S::set1(im_[n]), q[r]);
        }
      }
      for (int i = 0, n = o * in; panel->negative && i < in; ++i, ++n) {
        for (int r = 0; r < R; ++r) {
          q[r] = S::add_masked(q[r], panel->mask[r * in + i], S::set1(turn_[n]));
          if constexpr (complex) p[r] = S::add_masked(p[r], panel->mask[r * in + i], S::set1(shrink_[n]));
        }
      }
      for (int r = 0; r < R; ++r) finish_outputs<T>(p[r], q[r], panel->y + r * out + o, panel->s + r * out + o);
    }
  }

  // Rows in a register that begins with the r-th.
  static int valid(int64_t rows, int r) { return int(max<int64_t>(0, min<int64_t>(W, rows - r * W))); }

  const T* re() const { return re_; }
  const T* im() const { return im_; }
  const T* gate() const { return gate_; }

 private:
  const NpuInputs<T>& in_;
  const T *re_, *im_;
  T gate_[W], turn_[kTinyProducts], shrink_[kTinyProducts];
};

template <typename T, bool complex>
bool forward_tiny(const NpuForward<T>& f, const Parallel& parallel) {
  using Rows = TinyRows<T, complex>;
  constexpr int64_t kChunk = 16 * Rows::kRows;  // rows of a task
  constexpr int W = Simd<T>::width;
  const NpuInputs<T>& in = f.inputs;
  if (in.in > W || in.out > W || in.in * in.out > kTinyProducts) return false;
  const int out = int(in.out);
  const int64_t chunks = ceil_div(in.rows, kChunk);
  parallel.over(in.models * chunks, [&](int64_t begin, int64_t end) {
    Rows rows(in);
    typename Rows::Panel panel;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / chunks, first = task % chunks * kChunk, last = min(first + kChunk, in.rows);
      rows.load_weights(model);
      for (int64_t row = first; row < last; row += Rows::kRows) {
        const int64_t at = model * in.rows + row;
        rows.compute(in.x + (in.shared_x ? row : at) * in.in, last - row, &panel);
        for (int r = 0; r < panel.registers; ++r) {
          const int64_t to = (at + r * W) * out;
          store_few_columns<T>(f.y + to, Rows::valid(last - row, r), out, panel.y + r * out);
          if (f.s != nullptr) store_few_columns<T>(f.s + to, Rows::valid(last - row, r), out, panel.s + r * out);
        }
      }
    }
  });
  return true;
}

}  // namespace NPU_ISA
}  // namespace npu
