// Neural Multiplication Unit, and the Neural Multiplicative Reciprocal Unit, which has the same kernels.
#pragma once

#include <array>

#include "record.h"

namespace npu {

template <typename T>
struct NmuInputs {
  int64_t models, rows, in, out;
  const T* x;  // [K, B, I], or [B, I] when shared
  bool shared_x;
  const T* weight;  // [K, O, factors()]
  bool clip;        // to [0, 1]
  // NMRU: the factors are of x' = [x, 1 / (x + eps)].
  bool reciprocal = false;
  bool separate = false;  // the signs apart from the sizes
  T eps = 0;

  int64_t factors() const { return reciprocal ? 2 * in : in; }
};

template <typename T>
struct NmuForward {
  NmuInputs<T> inputs;
  T* y;  // [K, B, O]
};

template <typename T>
struct NmuBackward {
  NmuInputs<T> inputs;
  const T* grad_y;  // [K, B, O]
  T* grad_x;        // [K, B, I]; null: not wanted (likewise below)
  T* grad_weight;   // [K, O, factors()]
};

struct NmuLayer : Layer {
  static constexpr const char* name = "nmu";
  static constexpr std::array<Weight, 1> weights{{{"weight", "OI"}}};
  static constexpr std::array<Option, 1> options{{{"clip", kFlag, kOnFastPath}}};

  template <typename T>
  static NmuInputs<T> inputs(const Given<T>& g) {
    const Sizes& n = g.n;
    return {n.models, n.rows, n.in, n.out, g.operands[0], n.shared_x, g.operands[1], g.options[0] != 0};
  }
  template <typename T>
  static NmuForward<T> forward(const ForwardCall<T>& c) {
    return {inputs(c.given), c.y};
  }
  template <typename T>
  static NmuBackward<T> backward(const BackwardCall<T>& c) {
    return {inputs(c.given), c.grad_y, c.grads[0], c.grads[1]};
  }
  template <typename T>
  static constexpr auto forward_kernel = &Kernels<T>::nmu_forward;
  template <typename T>
  static constexpr auto backward_kernel = &Kernels<T>::nmu_backward;
};

struct NmruLayer : NmuLayer {
  static constexpr const char* name = "nmru";
  static constexpr std::array<Weight, 1> weights{{{"weight", "OJ"}}};
  static constexpr std::array<Option, 3> options{
      {{"eps", kNotNegative},
       {"clip", kFlag},
       {"separate", kWord, kInForward | kInBackward | kOnFastPath, {"product", "separate"}}}};

  template <typename T>
  static NmuInputs<T> inputs(const Given<T>& g) {
    const Sizes& n = g.n;
    const bool clip = g.options[1] != 0, separate = g.options[2] != 0;
    return {n.models,      n.rows, n.in, n.out,    g.operands[0],  n.shared_x,
            g.operands[1], clip,   true, separate, T(g.options[0])};
  }
  template <typename T>
  static NmuForward<T> forward(const ForwardCall<T>& c) {
    return {inputs(c.given), c.y};
  }
  template <typename T>
  static NmuBackward<T> backward(const BackwardCall<T>& c) {
    return {inputs(c.given), c.grad_y, c.grads[0], c.grads[1]};
  }
};

using NmuFamily = List<NmuLayer, NmruLayer>;

}  // namespace npu
