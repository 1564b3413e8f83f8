// The forward of layers with many inputs and one or two outputs; the formulas and notation stand in npu/forward.cpp.
#include "npu/forward.h"

namespace npu {
namespace NPU_ISA {
namespace {

// A register holds neighbouring inputs of a row. Their logarithms never leave the registers: for so few outputs, making
// panels of them would cost more than the products. P and Q end in sums over lanes, of a register of rows at once.
template <typename T, bool complex>
class FewOutputs {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int R = 2;  // rows whose sums are made at once

 public:
  static constexpr int64_t kChunk = 16 * W;  // rows of a task

  explicit FewOutputs(const NpuForward<T>& f)
      : f_(f), in_(f.inputs), registers_(ceil_div(in_.in, W)), weights_(registers_ * step(int(in_.out))) {}

  // [registers of inputs][ghat, 1 - ghat, and of every out: wr, pi ghat wr (and wi, -pi ghat wi)]
  void load_weights(int64_t model, const T* gate) {
    T* to = weights_;
    const auto put = [&](Reg value) __attribute__((always_inline)) {
      S::store(to, value);
      to += W;
    };
    for (int64_t i = 0; i < in_.in; i += W) {
      const int count = int(min<int64_t>(W, in_.in - i));
      const Reg g = S::load_first(gate + i, count), angle = S::set1(T(kPi)) * g;
      put(g);  // zero behind I: r = 1, L = 0
      put(S::set1(T(1)) - g);
      for (int64_t o = 0; o < in_.out; ++o) {
        const int64_t at = (model * in_.out + o) * in_.in + i;
        const Reg re = S::load_first(in_.weight_re + at, count);
        put(re);
        put(angle * re);
        if constexpr (complex) {
          const Reg im = S::load_first(in_.weight_im + at, count);
          put(im);
          put(-angle * im);
        }
      }
    }
  }

  // Rows [first, end) of a model.
  void run(int64_t model, int64_t first, int64_t end) const {
    with_constant<1, kForwardFewOutputs>(
        in_.out, [&](auto outputs) { run_outputs<decltype(outputs)::value>(model, first, end); });
  }

 private:
  static constexpr int kParts = complex ? 2 : 1;
  static constexpr int step(int outputs) { return (2 + 2 * kParts * outputs) * W; }

  template <int O>
  void run_outputs(int64_t model, int64_t first, int64_t end) const {
    for (int64_t row = first; row < end; row += W) {
      const int rows = int(min<int64_t>(W, end - row));
      const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
      Reg p[O][W], q[O][W];
      int b = 0;
      for (; b + R <= rows; b += R) add_rows<O, R>(x + b * in_.in, b, p, q);
      for (; b < rows; ++b) add_rows<O, 1>(x + b * in_.in, b, p, q);
      for (int o = 0; o < O; ++o)
        for (int n = rows; n < W; ++n) p[o][n] = q[o][n] = S::zero();
      Reg y[O], s[O];
      for (int o = 0; o < O; ++o) finish_outputs<T>(S::sum_each(p[o]), S::sum_each(q[o]), &y[o], &s[o]);
      const int64_t to = (model * in_.rows + row) * O;
      store_few_columns<T>(f_.y + to, rows, O, y);
      if (f_.s != nullptr) store_few_columns<T>(f_.s + to, rows, O, s);
    }
  }

  // The lanes of P and Q of N rows, the first of which is the b-th and has its inputs at x. The sums of kRun registers
  // of inputs join a total.
  template <int O, int N>
  NPU_INLINE void add_rows(const T* x, int b, Reg (&p)[O][W], Reg (&q)[O][W]) const {
    const Reg eps = S::set1(in_.eps);
    const int64_t step_x = in_.in;
    const T* w = weights_;
    for (int64_t v = 0; v < registers_;) {
      Reg p_run[O][N] = {}, q_run[O][N] = {};
      const bool first = v == 0;
      for (const int64_t end = min(v + kRun, registers_); v < end; ++v, x += W, w += step(O)) {
        const int count = int(min<int64_t>(W, step_x - v * W));
        const Gate<T> gate(S::load(w), S::load(w + W), eps);
        for (int r = 0; r < N; ++r) {
          const Reg value = S::load_first(x + r * step_x, count);
          __builtin_prefetch(x + (r + N) * step_x);  // of the next rows
          const Reg l = gate.log(value);
          typename S::Mask negative;
          S::store_negative(&negative, value);
          for (int o = 0; o < O; ++o) {
            const T* part = w + (2 + 2 * kParts * o) * W;
            p_run[o][r] = S::fma(l, S::load(part), p_run[o][r]);
            q_run[o][r] = S::add_masked(q_run[o][r], negative, S::load(part + W));
            if constexpr (complex) {
              q_run[o][r] = S::fma(l, S::load(part + 2 * W), q_run[o][r]);
              p_run[o][r] = S::add_masked(p_run[o][r], negative, S::load(part + 3 * W));
            }
          }
        }
      }
      for (int o = 0; o < O; ++o) {
        for (int r = 0; r < N; ++r) {
          p[o][b + r] = first ? p_run[o][r] : p[o][b + r] + p_run[o][r];
          q[o][b + r] = first ? q_run[o][r] : q[o][b + r] + q_run[o][r];
        }
      }
    }
  }

  const NpuForward<T>& f_;
  const NpuInputs<T>& in_;
  const int64_t registers_;  // of inputs
  Scratch<T> weights_;
};

template <typename T, bool complex>
void forward(const NpuForward<T>& f, const Parallel& parallel) {
  using Rows = FewOutputs<T, complex>;
  const NpuInputs<T>& in = f.inputs;
  const int64_t chunks = ceil_div(in.rows, Rows::kChunk);
  parallel.over(in.models * chunks, [&](int64_t begin, int64_t end) {
    Rows rows(f);
    Scratch<T> gate(in.in);
    int64_t loaded = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / chunks, first = task % chunks * Rows::kChunk;
      if (model != loaded) {
        load_gate<T>(in, model, gate);
        rows.load_weights(model, gate);
        loaded = model;
      }
      rows.run(model, first, min(first + Rows::kChunk, in.rows));
    }
  });
}

}  // namespace

template <typename T>
bool npu_forward_few_outputs(const NpuForward<T>& f, const Parallel& parallel) {
  if (f.inputs.in == 0 || f.inputs.out == 0 || f.inputs.out > kForwardFewOutputs) return false;
  if (f.inputs.weight_im != nullptr) forward<T, true>(f, parallel);
  else forward<T, false>(f, parallel);
  return true;
}

template bool npu_forward_few_outputs<float>(const NpuForward<float>&, const Parallel&);
template bool npu_forward_few_outputs<double>(const NpuForward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
