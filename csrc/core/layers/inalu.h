// Improved Neural Arithmetic Logic Unit.
#pragma once

#include <array>

#include "record.h"

namespace npu {

// W and A are tanh(weight) sigmoid(mask) of the pairs of parameters.
template <typename T>
struct InaluInputs {
  int64_t models, rows, in, out;
  const T* x;  // [K, B, I], or [B, I] when shared
  bool shared_x;
  const T *weight_add, *mask_add, *weight_mul, *mask_mul, *gate_weight;  // [K, O, I]
  T eps, omega;
};

template <typename T>
struct InaluForward {
  InaluInputs<T> inputs;
  T* y;            // [K, B, O]
  T *h, *a, *t;    // [K, B, O], for the backward: the gate's argument, the sum, the product without factors that are 0
  int32_t* flags;  // [K, B, O]: 1 where omega bounds, plus 2 min(number of factors that are 0, 2). All null: not wanted
  T* parts;        // [4, K, O, I]: tanh and sigmoid of A's weight and mask, then of W's; null: not wanted
};

template <typename T>
struct InaluBackward {
  InaluInputs<T> inputs;
  const T *grad_y, *h, *a, *t;  // [K, B, O]
  const int32_t* flags;         // [K, B, O]
  const T* parts;               // of the forward; null: computed again, bitwise identical
  T* grad_x;                    // [K, B, I] even when x is shared; null: not wanted (likewise below)
  T *grad_weight_add, *grad_mask_add, *grad_weight_mul, *grad_mask_mul, *grad_gate_weight;  // [K, O, I]
};

struct InaluLayer : Layer {
  static constexpr const char* name = "inalu";
  static constexpr std::array<Weight, 5> weights{
      {{"weight_add", "OI"}, {"mask_add", "OI"}, {"weight_mul", "OI"}, {"mask_mul", "OI"}, {"gate_weight", "OI"}}};
  static constexpr std::array<Option, 2> options{{{"eps", kPositive}, {"omega", kPositive}}};
  static constexpr std::array<Saved, 5> saved{
      {{"h"}, {"a"}, {"t"}, {"flags", Saved::kFlags}, {"parts", Saved::kParts, 4}}};

  template <typename T>
  static InaluInputs<T> inputs(const Given<T>& g) {
    const Sizes& n = g.n;
    const T* const* in = g.operands;
    return {n.models, n.rows, n.in,  n.out, in[0],           n.shared_x,     in[1],
            in[2],    in[3],  in[4], in[5], T(g.options[0]), T(g.options[1])};
  }
  template <typename T>
  static InaluForward<T> forward(const ForwardCall<T>& c) {
    return {inputs(c.given),           c.y,
            c.template saved_as<T>(0), c.template saved_as<T>(1),
            c.template saved_as<T>(2), c.template saved_as<int32_t>(3),
            c.template saved_as<T>(4)};
  }
  template <typename T>
  static InaluBackward<T> backward(const BackwardCall<T>& c) {
    return {inputs(c.given),
            c.grad_y,
            c.template saved_as<T>(0),
            c.template saved_as<T>(1),
            c.template saved_as<T>(2),
            c.template saved_as<int32_t>(3),
            c.template saved_as<T>(4),
            c.grads[0],
            c.grads[1],
            c.grads[2],
            c.grads[3],
            c.grads[4],
            c.grads[5]};
  }
  template <typename T>
  static constexpr auto forward_kernel = &Kernels<T>::inalu_forward;
  template <typename T>
  static constexpr auto backward_kernel = &Kernels<T>::inalu_backward;
};

using InaluFamily = List<InaluLayer>;

}  // namespace npu
