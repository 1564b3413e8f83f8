// Neural Power Unit.
#pragma once

#include <array>

#include "record.h"

namespace npu {

template <typename T>
struct NpuInputs {
  int64_t models, rows, in, out;
  const T* x;          // [K, B, I], or [B, I] when shared
  bool shared_x;       // one x for all models
  const T* weight_re;  // [K, O, I]
  const T* weight_im;  // [K, O, I]; null: RealNPU
  const T* gate;       // [K, I];    null: NaiveNPU
  T eps;
  // Number of bfloat16 terms that represent a float in a product, if the instruction set multiplies them and T is
  // float: 3 are as good as float32 (relative error of a product some 2^-24), 2 leave some 2^-17, 1 leaves some 2^-9.
  int terms = 3;
};

template <typename T>
struct NpuForward {
  NpuInputs<T> inputs;
  T* y;  // [K, B, O]  exp(P) cos(Q)
  T* s;  // [K, B, O]  exp(P) sin(Q), all that the backward needs beside the inputs and y; null: not wanted
};

template <typename T>
struct NpuBackward {
  NpuInputs<T> inputs;
  const T* grad_y;        // [K, B, O]
  const T* y;             // [K, B, O]
  const T* s;             // [K, B, O]
  bool straight_through;  // the gate's gradient passes outside [0, 1] too
  T* grad_x;              // [K, B, I] even when x is shared; null: not wanted (likewise below)
  T* grad_weight_re;      // [K, O, I]
  T* grad_weight_im;      // [K, O, I]
  T* grad_gate;           // [K, I]
};

// The derivatives of dy, the change of y along a direction in x, weights and gate, in the inner product with grad_y:
// what a double backward takes. dy itself is the derivative by grad_y.
template <typename T>
struct NpuSecond {
  NpuInputs<T> inputs;
  const T* grad_y;        // [K, B, O]; null: grad_grad_y alone is wanted
  const T* y;             // [K, B, O]
  const T* s;             // [K, B, O]
  bool straight_through;  // the direction of the gate, and its gradient, count outside [0, 1] too
  const T* along_x;       // as x; null: 0 (likewise below)
  const T* along_re;      // [K, O, I]
  const T* along_im;      // [K, O, I]; with weight_im, both or none
  const T* along_gate;    // [K, I]
  T* grad_grad_y;         // [K, B, O]; null: not wanted (likewise below)
  T* grad_x;              // [K, B, I] even when x is shared
  T* grad_weight_re;      // [K, O, I]
  T* grad_weight_im;      // [K, O, I]
  T* grad_gate;           // [K, I]
  // The gradients of y and s, both or none. With them the others are what does not come through y and s: a backward of
  // the layer with their gradients too adds the rest, in fewer products.
  T* grad_of_y = nullptr;  // [K, B, O]
  T* grad_of_s = nullptr;  // [K, B, O]

  bool through_y() const { return grad_of_y != nullptr; }
  bool gate_passes(T gate) const { return straight_through || (gate >= T(0) && gate <= T(1)); }
  bool changes_inputs() const { return along_x != nullptr || along_gate != nullptr; }
  bool changes_weights() const { return along_re != nullptr; }
  bool wants_inputs() const { return grad_x != nullptr || grad_gate != nullptr; }
};

// Forward, mean squared error and backward of a layer at once, for training (operators/training_loop.h).
template <typename T>
struct NpuStep {
  NpuBackward<T> backward;  // grad_y, y, s and grad_x: null
  int64_t next_x;           // elements from one model's x to the next one's, in place of those of inputs.shared_x
  const T* target;          // [B, O] of each model
  int64_t next_target;
  T* loss;  // [K]; null: not wanted
};

// The forms of the kernels; core/npu/limits.h chooses.
enum class NpuForwardForm { kTiny, kFewOutputs, kFewRows, kPanels, kOutputs };
enum class NpuBackwardForm { kFewOutputs, kWide, kNarrow };

struct NpuLayer : Layer {
  static constexpr const char* name = "npu";
  static constexpr std::array<Weight, 3> weights{{{"weight_re", "OI"}, {"weight_im", "OI", true}, {"gate", "I", true}}};
  static constexpr std::array<Option, 2> options{
      {{"eps", kEps}, {"straight_through", kWord, kInBackward | kOnFastPath, {"clip", "straight_through"}}}};
  static constexpr std::array<Saved, 1> saved{{{"s"}}};
  static constexpr bool takes_y = true;
  static constexpr bool second = true;

  template <typename T>
  static NpuInputs<T> inputs(const Given<T>& g) {
    const Sizes& n = g.n;
    const T* const* in = g.operands;
    return {n.models, n.rows, n.in, n.out, in[0], n.shared_x, in[1], in[2], in[3], T(g.options[0]), float_terms()};
  }
  template <typename T>
  static NpuForward<T> forward(const ForwardCall<T>& c) {
    return {inputs(c.given), c.y, c.template saved_as<T>(0)};
  }
  template <typename T>
  static NpuBackward<T> backward(const BackwardCall<T>& c) {
    return {inputs(c.given), c.grad_y,   c.y,       c.template saved_as<T>(0), c.given.options[1] != 0, c.grads[0],
            c.grads[1],      c.grads[2], c.grads[3]};
  }
  template <typename T>
  static constexpr auto forward_kernel = &Kernels<T>::npu_forward;
  template <typename T>
  static constexpr auto backward_kernel = &Kernels<T>::npu_backward;
  template <typename T>
  static bool step(const StepCall<T>& c) {
    return kernels<T>().npu_step({backward(c.backward), c.next_x, c.target, c.next_target, c.loss});
  }
};

using NpuFamily = List<NpuLayer>;

}  // namespace npu
