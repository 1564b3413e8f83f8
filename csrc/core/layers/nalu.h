// Neural Arithmetic Logic Unit.
#pragma once

#include <array>

#include "record.h"

namespace npu {

// W is tanh(weight) sigmoid(mask).
template <typename T>
struct NaluInputs {
  int64_t models, rows, in, out;
  const T* x;  // [K, B, I], or [B, I] when shared
  bool shared_x;
  const T *weight, *mask, *gate_weight;  // [K, O, I]
  const T* gate_bias;                    // [K, O]; null: none
  T eps;
};

template <typename T>
struct NaluForward {
  NaluInputs<T> inputs;
  T* y;          // [K, B, O]
  T *h, *a, *t;  // [K, B, O], for the backward: the gate's argument, the sum, the product; all null: not wanted
  T* parts;      // [2, K, O, I]: tanh(weight) and sigmoid(mask); null: not wanted
};

template <typename T>
struct NaluBackward {
  NaluInputs<T> inputs;
  const T *grad_y, *h, *a, *t;                    // [K, B, O]
  const T* parts;                                 // of the forward; null: computed again, bitwise identical
  T* grad_x;                                      // [K, B, I] even when x is shared; null: not wanted (likewise below)
  T *grad_weight, *grad_mask, *grad_gate_weight;  // [K, O, I]
  T* grad_gate_bias;                              // [K, O]
};

struct NaluLayer : Layer {
  static constexpr const char* name = "nalu";
  static constexpr std::array<Weight, 4> weights{
      {{"weight", "OI"}, {"mask", "OI"}, {"gate_weight", "OI"}, {"gate_bias", "O", true}}};
  static constexpr std::array<Option, 1> options{{{"eps", kPositive}}};
  static constexpr std::array<Saved, 4> saved{{{"h"}, {"a"}, {"t"}, {"parts", Saved::kParts, 2}}};

  template <typename T>
  static NaluInputs<T> inputs(const Given<T>& g) {
    const Sizes& n = g.n;
    const T* const* in = g.operands;
    return {n.models, n.rows, n.in, n.out, in[0], n.shared_x, in[1], in[2], in[3], in[4], T(g.options[0])};
  }
  template <typename T>
  static NaluForward<T> forward(const ForwardCall<T>& c) {
    return {inputs(c.given),           c.y,
            c.template saved_as<T>(0), c.template saved_as<T>(1),
            c.template saved_as<T>(2), c.template saved_as<T>(3)};
  }
  template <typename T>
  static NaluBackward<T> backward(const BackwardCall<T>& c) {
    return {inputs(c.given),
            c.grad_y,
            c.template saved_as<T>(0),
            c.template saved_as<T>(1),
            c.template saved_as<T>(2),
            c.template saved_as<T>(3),
            c.grads[0],
            c.grads[1],
            c.grads[2],
            c.grads[3],
            c.grads[4]};
  }
  template <typename T>
  static constexpr auto forward_kernel = &Kernels<T>::nalu_forward;
  template <typename T>
  static constexpr auto backward_kernel = &Kernels<T>::nalu_backward;
};

using NaluFamily = List<NaluLayer>;

}  // namespace npu
