// The right side of u' = A npu(u) and its transposed Jacobian, for one register of trajectories: a lane is one start of
// one model, with weights of its own.
//
//   rhs       r = g (|v| + eps) + (1 - g)    L = log r    t = pi g where v < 0, else 0
//             P = Wr L - Wi t    Q = Wi L + Wr t    y = exp(P) cos(Q)    s = exp(P) sin(Q)    k = A y
//   vjp       dy = A' dk    dP = dy y    dQ = -dy s    dA += dk y'
//             dWr += dP L' + dQ t'    dWi += dQ L' - dP t'    dL = Wr' dP + Wi' dQ    dr = dL / r    dv = dr g sign(v)
//             dg += dr (|v| + eps - 1) + pi sum_o (Wr dQ - Wi dP) where v < 0
//
//   jacobian  J = A (diag(y) Wr - diag(s) Wi) diag(g sign(v) / r)
//
// sign(0) is 1: from the right the derivative is the exact one of whole powers.
//
// A lane never depends on another one: where some are negative, the terms of the others are masked, not multiplied by
// 0.
#pragma once

#include "api.h"
#include "npu/gate.h"
#include "ode/loop.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

template <typename T, int D>  // D features, 0: any number
class Lanes {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  using Bits = typename S::Bits;
  static constexpr int W = S::width;

 public:
  explicit Lanes(const OdeInputs<T>& in)
      : in_(in),
        weights_(in.hidden * 3 * in.features),
        gate_(in.features),
        grads_(in.hidden * 3 * in.features),
        grad_gate_(in.features),
        scratch_(4 * in.features) {}

  int64_t registers() const { return features(); }
  int64_t stage_size() const { return 2 * (features() + in_.hidden) * W; }
  static constexpr int64_t kScratchStride = W;

  // Stage n of all that are saved of the trajectory at `place`.
  template <typename Pointer>
  Stage<T, Pointer> stage(Pointer stages, int64_t n, int64_t saved, int64_t place) const {
    const int64_t size = 2 * (features() + in_.hidden) * kOdeBlock;
    return {stages + (place / kOdeBlock * saved + n) * size + place % kOdeBlock, kOdeBlock};
  }

  // States of some rows, a register of each feature.
  void load(const T* from, int64_t stride, int lanes, Reg* to) const {
    for (int64_t d = 0; d < features(); d += W)
      load_columns<T>(from + d, stride, lanes, int(min<int64_t>(W, features() - d)), to + d);
  }
  void store(T* to, int64_t stride, int lanes, const Reg* from) const {
    for (int64_t d = 0; d < features(); d += W)
      store_columns<T>(to + d, stride, lanes, int(min<int64_t>(W, features() - d)), from + d);
  }

  // The weights of the models of rows [first, first + lanes). Lanes without a row get zeros: their derivative is 0.
  void pack(int64_t first, int lanes) {
    const int64_t d_count = features(), h = in_.hidden;
    int64_t models[W];
    for (int l = 0; l < W; ++l) models[l] = (first + (l < lanes ? l : 0)) / in_.starts;
    const bool same = models[lanes - 1] == models[0];
    if (same && lanes == packed_lanes_ && models[0] == packed_model_) return;
    packed_model_ = same ? models[0] : -1;
    packed_lanes_ = lanes;
    const auto gather = [&](const T* from, int64_t size, int64_t at) {
      alignas(64) T values[W] = {};
      for (int l = 0; l < lanes; ++l) values[l] = from[models[l] * size + at];
      return S::load(values);
    };
    for (int64_t o = 0; o < h; ++o) {
      Reg* w = weights_ + o * 3 * d_count;
      for (int64_t d = 0; d < d_count; ++d) {
        w[d] = gather(in_.weight_re, h * d_count, o * d_count + d);
        w[d_count + d] = in_.complex() ? gather(in_.weight_im, h * d_count, o * d_count + d) : S::zero();
        const Reg a = gather(in_.weight, h * d_count, d * h + o);
        w[2 * d_count + d] = in_.clip ? S::bounded(a, S::set1(T(-1)), S::set1(T(1))) : a;
      }
    }
    for (int64_t d = 0; d < d_count; ++d) {
      alignas(64) T values[W] = {};
      for (int l = 0; l < lanes; ++l)
        values[l] = in_.gate == nullptr ? T(1) : clamp_gate(in_.gate[models[l] * d_count + d]);
      gate_[d] = S::load(values);
    }
  }

  // k = A npu(v); keeps the stage.
  void rhs(const Reg* v, Reg* k, const Stage<T, T*>& stage) {
    const int64_t d_count = features(), h = in_.hidden;
    const bool complex = in_.complex();
    const Reg eps = S::set1(in_.eps), pi = S::set1(T(kPi));
    Features<Reg, D> log(scratch_), turn(scratch_ + d_count), sum(scratch_ + 2 * d_count);
    bool turned = false;
    for (int64_t d = 0; d < d_count; ++d) {
      const Reg x = v[d], g = gate_[d];
      log[d] = Gate<T>(g, eps).log(x);
      turn[d] = S::select(x < S::zero(), pi * g, S::zero());
      turned |= S::any_less(x, S::zero());
      sum[d] = S::zero();
      stage.store(d, x);
      stage.store(d_count + d, log[d]);
    }
    for (int64_t o = 0; o < h; ++o) {
      const Reg* w = weights_ + o * 3 * d_count;
      Reg p = S::zero(), q = S::zero();
      for (int64_t d = 0; d < d_count; ++d) p = S::fma(log[d], w[d], p);
      for (int64_t d = 0; complex && d < d_count; ++d) q = S::fma(log[d], w[d_count + d], q);
      if (turned) {
        for (int64_t d = 0; d < d_count; ++d) q = S::fma(turn[d], w[d], q);
        for (int64_t d = 0; complex && d < d_count; ++d) p = S::fma(-turn[d], w[d_count + d], p);
      }
      Reg y = VectorMath<T>::exp(p), s = S::zero();
      if (complex || turned) {
        Reg sine, cosine;
        // An inf becomes nan, so that a trajectory that has diverged does not take the slow way for far arguments.
        VectorMath<T>::sincos(q + (q - q), &sine, &cosine);
        s = y * sine;
        y = y * cosine;
      }
      for (int64_t d = 0; d < d_count; ++d) sum[d] = S::fma(w[2 * d_count + d], y, sum[d]);
      stage.store(2 * d_count + o, y);
      stage.store(2 * d_count + h + o, s);
    }
    for (int64_t d = 0; d < d_count; ++d) k[d] = sum[d];
  }

  void clear_gradients() {
    const int64_t d_count = features();
    for (int64_t n = 0; n < in_.hidden * 3 * d_count; ++n) grads_[n] = S::zero();
    for (int64_t d = 0; d < d_count; ++d) grad_gate_[d] = S::zero();
  }

  // dv = J' dk; adds to the weights' gradients.
  void vjp(const Stage<T, const T*>& stage, const Reg* dk, Reg* dv) {
    const int64_t d_count = features(), h = in_.hidden;
    const bool complex = in_.complex();
    const Reg eps = S::set1(in_.eps), pi = S::set1(T(kPi));
    Features<Reg, D> log(scratch_), turn(scratch_ + d_count), sum(scratch_ + 2 * d_count),
        phase(scratch_ + 3 * d_count);
    bool turned = false;
    for (int64_t d = 0; d < d_count; ++d) {
      const Reg x = stage.load(d);
      log[d] = stage.load(d_count + d);
      turn[d] = S::select(x < S::zero(), pi * gate_[d], S::zero());
      turned |= S::any_less(x, S::zero());
      sum[d] = phase[d] = S::zero();
    }
    for (int64_t o = 0; o < h; ++o) {
      const Reg* w = weights_ + o * 3 * d_count;
      Reg* grad = grads_ + o * 3 * d_count;
      const Reg y = stage.load(2 * d_count + o), s = stage.load(2 * d_count + h + o);
      Reg dy = S::zero();
      for (int64_t d = 0; d < d_count; ++d) {
        dy = S::fma(w[2 * d_count + d], dk[d], dy);
        grad[2 * d_count + d] = S::fma(dk[d], y, grad[2 * d_count + d]);
      }
      const Reg dp = dy * y, dq = -dy * s;
      for (int64_t d = 0; d < d_count; ++d) {
        grad[d] = S::fma(dp, log[d], grad[d]);
        sum[d] = S::fma(dp, w[d], sum[d]);
      }
      if (complex) {
        for (int64_t d = 0; d < d_count; ++d) {
          grad[d_count + d] = S::fma(dq, log[d], grad[d_count + d]);
          sum[d] = S::fma(dq, w[d_count + d], sum[d]);
        }
      }
      if (turned) {
        for (int64_t d = 0; d < d_count; ++d) {
          const Bits at = turn[d] != S::zero();
          grad[d] = S::select(at, S::fma(dq, turn[d], grad[d]), grad[d]);
          phase[d] = S::fma(dq, w[d], phase[d]);
        }
        for (int64_t d = 0; complex && d < d_count; ++d) {
          const Bits at = turn[d] != S::zero();
          grad[d_count + d] = S::select(at, S::fma(-dp, turn[d], grad[d_count + d]), grad[d_count + d]);
          phase[d] = S::fma(-dp, w[d_count + d], phase[d]);
        }
      }
    }
    for (int64_t d = 0; d < d_count; ++d) {
      const Reg x = stage.load(d);
      dv[d] = Gate<T>(gate_[d], eps).spread_right(sum[d], x, &grad_gate_[d]);
      grad_gate_[d] = S::select(x < S::zero(), S::fma(pi, phase[d], grad_gate_[d]), grad_gate_[d]);
    }
  }

  // J of a stage, row by row.
  void jacobian(const Stage<T, const T*>& stage, Reg* j) {
    const int64_t d_count = features(), h = in_.hidden;
    const Reg eps = S::set1(in_.eps);
    Features<Reg, D> of_log(scratch_), rate(scratch_ + d_count);
    Reg ignored = S::zero();
    for (int64_t d = 0; d < d_count; ++d)
      rate[d] = Gate<T>(gate_[d], eps).spread_right(S::set1(T(1)), stage.load(d), &ignored);
    for (int64_t n = 0; n < d_count * d_count; ++n) j[n] = S::zero();
    for (int64_t o = 0; o < h; ++o) {
      const Reg* w = weights_ + o * 3 * d_count;
      const Reg y = stage.load(2 * d_count + o), s = stage.load(2 * d_count + h + o);
      for (int64_t d = 0; d < d_count; ++d) of_log[d] = S::fma(-s, w[d_count + d], y * w[d]);
      for (int64_t i = 0; i < d_count; ++i)
        for (int64_t d = 0; d < d_count; ++d)
          j[i * d_count + d] = S::fma(w[2 * d_count + i], of_log[d], j[i * d_count + d]);
    }
    for (int64_t i = 0; i < d_count; ++i)
      for (int64_t d = 0; d < d_count; ++d) j[i * d_count + d] = j[i * d_count + d] * rate[d];
  }

  // The gradients' registers: Wr, Wi, A of every hidden unit, [h][3][D], then the gate's [D].
  int64_t gradients() const { return (3 * in_.hidden + 1) * features(); }
  Reg gradient(int64_t n) const {
    const int64_t weights = in_.hidden * 3 * features();
    return n < weights ? grads_[n] : grad_gate_[n - weights];
  }

 private:
  int64_t features() const { return D ? D : in_.features; }

  const OdeInputs<T>& in_;
  Scratch<Reg> weights_, gate_, grads_, grad_gate_, scratch_;
  int64_t packed_model_ = -1;
  int packed_lanes_ = 0;
};

}  // namespace NPU_ISA
}  // namespace npu
