// The right side of u' = A npu(u) and its transposed Jacobian for a single trajectory: lanes are hidden units, and in
// the states features. Formulas: ode/lanes.h. Padded units have A = 0 and leave no trace, padded features stay 0.
#pragma once

#include "api.h"
#include "npu/gate.h"
#include "ode/loop.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

template <typename T, int D>  // D features, 0: any number
class HiddenLanes {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;

 public:
  explicit HiddenLanes(const OdeInputs<T>& in)
      : in_(in),
        units_(ceil_div(in.hidden, W)),
        weights_(in.features * 3 * units_),
        grads_(in.features * 3 * units_),
        gate_(registers()),
        grad_gate_(registers()),
        scratch_(2 * registers() * W),
        log_(registers() * W),
        turn_(registers() * W),
        derivative_(registers() * W) {}

  int64_t registers() const { return ceil_div(features(), W); }
  int64_t stage_size() const {
    return 2 * (ceil_div(features(), kOdeBlock) + ceil_div(in_.hidden, kOdeBlock)) * kOdeBlock;
  }
  static constexpr int64_t kScratchStride = W;

  template <typename Pointer>
  Stage<T, Pointer> stage(Pointer stages, int64_t n, int64_t, int64_t) const {
    return {stages + n * stage_size(), W};
  }

  void load(const T* from, int64_t, int, Reg* to) const {
    for (int64_t r = 0; r < registers(); ++r)
      to[r] = S::load_first(from + r * W, int(min<int64_t>(W, features() - r * W)));
  }
  void store(T* to, int64_t, int, const Reg* from) const {
    for (int64_t r = 0; r < registers(); ++r)
      S::store_first(to + r * W, from[r], int(min<int64_t>(W, features() - r * W)));
  }

  void pack(int64_t, int) {
    const int64_t h = in_.hidden, d_count = features();
    for (int64_t d = 0; d < d_count; ++d) {
      for (int64_t r = 0; r < units_; ++r) {
        alignas(64) T re[W] = {}, im[W] = {}, a[W] = {};
        for (int64_t l = 0; l < W && r * W + l < h; ++l) {
          const int64_t o = r * W + l;
          re[l] = in_.weight_re[o * d_count + d];
          if (in_.complex()) im[l] = in_.weight_im[o * d_count + d];
          const T raw = in_.weight[d * h + o];
          a[l] = in_.clip ? clip_weight(raw) : raw;
        }
        Reg* w = weights_ + (r * d_count + d) * 3;
        w[0] = S::load(re);
        w[1] = S::load(im);
        w[2] = S::load(a);
      }
    }
    for (int64_t r = 0; r < registers(); ++r) {
      alignas(64) T gate[W] = {};
      for (int64_t l = 0; l < W && r * W + l < d_count; ++l)
        gate[l] = in_.gate == nullptr ? T(1) : clamp_gate(in_.gate[r * W + l]);
      gate_[r] = S::load(gate);
    }
  }

  // k = A npu(v); keeps the stage.
  void rhs(const Reg* v, Reg* k, const Stage<T, T*>& stage) {
    const int64_t d_count = features(), count = registers();
    const bool complex = in_.complex();
    const Reg eps = S::set1(in_.eps);
    for (int64_t r = 0; r < count; ++r) {
      const Reg log = Gate<T>(gate_[r], eps).log(v[r]);
      stage.store(r, v[r]);
      stage.store(log_at() + r, log);
      S::store(log_ + r * W, log);
    }
    const bool turned = turns(v);
    Features<Reg, D> sum(scratch_);
    for (int64_t d = 0; d < d_count; ++d) sum[d] = S::zero();
    for (int64_t r = 0; r < units_; ++r) {
      const Reg* w = weights_ + r * d_count * 3;
      Reg p = S::zero(), q = S::zero();
      for (int64_t d = 0; d < d_count; ++d) {
        const Reg l = S::set1(log_[d]);
        p = S::fma(l, w[3 * d], p);
        if (complex) q = S::fma(l, w[3 * d + 1], q);
      }
      for (int64_t d = 0; turned && d < d_count; ++d) {
        const Reg t = S::set1(turn_[d]);
        q = S::fma(t, w[3 * d], q);
        if (complex) p = S::fma(-t, w[3 * d + 1], p);
      }
      Reg y = VectorMath<T>::exp(p), s = S::zero();
      if (complex || turned) {
        Reg sine, cosine;
        VectorMath<T>::sincos(q + (q - q), &sine, &cosine);  // an inf becomes nan, as in Lanes
        s = y * sine;
        y = y * cosine;
      }
      for (int64_t d = 0; d < d_count; ++d) sum[d] = S::fma(w[3 * d + 2], y, sum[d]);
      stage.store(y_at() + r, y);
      stage.store(s_at() + r, s);
    }
    for (int64_t r = 0; r < count; ++r) k[r] = total(sum, r);
  }

  void clear_gradients() {
    for (int64_t n = 0; n < features() * 3 * units_; ++n) grads_[n] = S::zero();
    for (int64_t r = 0; r < registers(); ++r) grad_gate_[r] = S::zero();
  }

  // dv = J' dk; adds to the weights' gradients.
  void vjp(const Stage<T, const T*>& stage, const Reg* dk, Reg* dv) {
    const int64_t d_count = features(), count = registers();
    const bool complex = in_.complex();
    const Reg eps = S::set1(in_.eps), pi = S::set1(T(kPi));
    for (int64_t r = 0; r < count; ++r) {
      S::store(derivative_ + r * W, dk[r]);
      S::store(log_ + r * W, stage.load(log_at() + r));
      dv[r] = stage.load(r);
    }
    const bool turned = turns(dv);
    Features<Reg, D> sum(scratch_), phase(scratch_ + count * W);
    for (int64_t d = 0; d < d_count; ++d) sum[d] = phase[d] = S::zero();
    for (int64_t r = 0; r < units_; ++r) {
      const Reg* w = weights_ + r * d_count * 3;
      Reg* grad = grads_ + r * d_count * 3;
      const Reg y = stage.load(y_at() + r), s = stage.load(s_at() + r);
      Reg dy = S::zero();
      for (int64_t d = 0; d < d_count; ++d) {
        const Reg derivative = S::set1(derivative_[d]);
        dy = S::fma(w[3 * d + 2], derivative, dy);
        grad[3 * d + 2] = S::fma(derivative, y, grad[3 * d + 2]);
      }
      const Reg dp = dy * y, dq = -dy * s;
      for (int64_t d = 0; d < d_count; ++d) {
        const Reg l = S::set1(log_[d]);
        grad[3 * d] = S::fma(dp, l, grad[3 * d]);
        sum[d] = S::fma(dp, w[3 * d], sum[d]);
        if (complex) {
          grad[3 * d + 1] = S::fma(dq, l, grad[3 * d + 1]);
          sum[d] = S::fma(dq, w[3 * d + 1], sum[d]);
        }
      }
      for (int64_t d = 0; turned && d < d_count; ++d) {
        if (turn_[d] != 0) {
          const Reg t = S::set1(turn_[d]);
          grad[3 * d] = S::fma(dq, t, grad[3 * d]);
          if (complex) grad[3 * d + 1] = S::fma(-dp, t, grad[3 * d + 1]);
        }
        phase[d] = S::fma(dq, w[3 * d], phase[d]);
        if (complex) phase[d] = S::fma(-dp, w[3 * d + 1], phase[d]);
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      const Reg x = stage.load(r);
      dv[r] = Gate<T>(gate_[r], eps).spread_right(total(sum, r), x, &grad_gate_[r]);
      if (turned) grad_gate_[r] = S::select(x < S::zero(), S::fma(pi, total(phase, r), grad_gate_[r]), grad_gate_[r]);
    }
  }

  void write_gradients(const OdeBackward<T>& b) const {
    const int64_t h = in_.hidden, d_count = features();
    for (int64_t o = 0; o < h; ++o) {
      for (int64_t d = 0; d < d_count; ++d) {
        const Reg* grad = grads_ + (o / W * d_count + d) * 3;
        if (b.grad_weight_re != nullptr) b.grad_weight_re[o * d_count + d] = grad[0][o % W];
        if (b.grad_weight_im != nullptr) b.grad_weight_im[o * d_count + d] = grad[1][o % W];
        const int64_t at = d * h + o;
        if (b.grad_weight != nullptr) b.grad_weight[at] = b.weight_passes(at) ? T(grad[2][o % W]) : T(0);
      }
    }
    for (int64_t d = 0; b.grad_gate != nullptr && d < d_count; ++d)
      b.grad_gate[d] = b.gate_passes(d) ? T(grad_gate_[d / W][d % W]) : T(0);
  }

 private:
  int64_t features() const { return D ? D : in_.features; }
  // Registers of a stage: v, L, y, s.
  int64_t log_at() const { return ceil_div(features(), kOdeBlock) * (kOdeBlock / W); }
  int64_t y_at() const { return 2 * log_at(); }
  int64_t s_at() const { return y_at() + ceil_div(in_.hidden, kOdeBlock) * (kOdeBlock / W); }

  // pi g of the features below 0; whether there are any.
  bool turns(const Reg* v) {
    bool any = false;
    for (int64_t r = 0; r < registers(); ++r) any |= S::any_less(v[r], S::zero());
    if (!any) return false;
    for (int64_t r = 0; r < registers(); ++r)
      S::store(turn_ + r * W, S::select(v[r] < S::zero(), S::set1(T(kPi)) * gate_[r], S::zero()));
    return true;
  }

  // Lane l is the sum over the hidden units of feature r W + l.
  NPU_INLINE Reg total(Features<Reg, D>& values, int64_t r) const {
    Reg block[W];
    for (int64_t l = 0; l < W; ++l) block[l] = r * W + l < features() ? values[r * W + l] : S::zero();
    return S::sum_each(block);
  }

  const OdeInputs<T>& in_;
  const int64_t units_;           // registers of hidden units
  Scratch<Reg> weights_, grads_;  // [units][D][3]: Wr, Wi, A'
  Scratch<Reg> gate_, grad_gate_, scratch_;
  Scratch<T> log_, turn_, derivative_;  // a stage's features one by one
};

}  // namespace NPU_ISA
}  // namespace npu
