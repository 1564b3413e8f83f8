// Neural Accumulator. No registered operators: elsewhere it is torch's own operators.
#pragma once

#include <array>

#include "nau.h"

namespace npu {

// W is tanh(weight) sigmoid(mask).
template <typename T>
struct NacInputs {
  int64_t models, rows, in, out;
  const T* x;  // [K, B, I], or [B, I] when shared
  bool shared_x;
  const T *weight, *mask;  // [K, O, I]
};

template <typename T>
struct NacForward {
  NacInputs<T> inputs;
  T* y;        // [K, B, O]; null: not wanted (likewise below)
  T* parts;    // [2, K, O, I]: tanh(weight) and sigmoid(mask)
  T* product;  // [K, O, I]: W
};

template <typename T>
struct NacBackward {
  NacInputs<T> inputs;
  const T* grad_y;             // [K, B, O]
  const T* grad_product;       // [K, O, I], of W, where it is known; may be grad_weight or grad_mask. Else null
  const T *parts, *product;    // of the forward
  T* grad_x;                   // [K, B, I] even when x is shared; null: not wanted (likewise below)
  T *grad_weight, *grad_mask;  // [K, O, I]
};

struct NacLayer : MatrixLayer {
  static constexpr const char* name = "nac";
  static constexpr std::array<Weight, 2> weights{{{"weight", "OI"}, {"mask", "OI"}}};
  static constexpr std::array<Option, 0> options{};
  static constexpr std::array<Saved, 2> saved{{{"parts", Saved::kParts, 2}, {"product", Saved::kParts, 1}}};

  template <typename T>
  static NacInputs<T> inputs(const Given<T>& g) {
    const Sizes& n = g.n;
    return {n.models, n.rows, n.in, n.out, g.operands[0], n.shared_x, g.operands[1], g.operands[2]};
  }
  template <typename T>
  static NacForward<T> forward(const ForwardCall<T>& c) {
    T* const product = c.matrix != nullptr ? c.matrix : c.template saved_as<T>(1);
    return {inputs(c.given), c.y, c.template saved_as<T>(0), product};
  }
  template <typename T>
  static NacBackward<T> backward(const BackwardCall<T>& c) {
    return {inputs(c.given),           c.grad_y,   c.grad_matrix, c.template saved_as<T>(0),
            c.template saved_as<T>(1), c.grads[0], c.grads[1],    c.grads[2]};
  }
  template <typename T>
  static constexpr auto forward_kernel = &Kernels<T>::nac_forward;
  template <typename T>
  static constexpr auto backward_kernel = &Kernels<T>::nac_backward;
};

using NacFamily = List<NacLayer>;

}  // namespace npu
