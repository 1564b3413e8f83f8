// Neural Addition Unit, and what it shares with the Neural Accumulator. No registered operators: elsewhere it is
// torch's own product.
#pragma once

#include <algorithm>
#include <array>

#include "record.h"

namespace npu {

template <typename T>
struct NauInputs {
  int64_t models, rows, in, out;
  const T* x;  // [K, B, I], or [B, I] when shared
  bool shared_x;
  const T* weight;  // [K, O, I]
  bool clip;        // to [-1, 1]
};

template <typename T>
struct NauForward {
  NauInputs<T> inputs;
  T* y;                 // [K, B, O]
  T* matrix = nullptr;  // [K, O, I]: A is wanted, here, and nothing else; null: y is
};

template <typename T>
struct NauBackward {
  NauInputs<T> inputs;
  const T* grad_y;          // [K, B, O]
  T* grad_x;                // [K, B, I] even when x is shared; null: not wanted (likewise below)
  T* grad_weight;           // [K, O, I]
  bool only_clips = false;  // grad_weight is the gradient of A, to be clipped, and nothing else is wanted
};

// y is x times a matrix that is made of the weights. The kernels multiply where a layer is small, torch elsewhere.
struct MatrixLayer : Layer {
  static constexpr bool registered = false;
  static constexpr bool by_matrix = true;
  static bool weight_is_matrix(const double* /*options*/) { return false; }

  // Measured: from a million multiply-adds on, torch's product is as fast, or faster by up to a quarter. Where the user
  // allows float32 products less than full precision, torch lowers it from 16^3 on. The other ways to this layer use
  // torch's product, so this one does too: one call has one precision on every way.
  static bool takes(const Sizes& n, bool single) {
    const int64_t side = std::max(n.in, n.out);
    const double work = double(n.models) * double(n.rows * n.in * n.out);
    if (single && work > 4096 && float_terms() < 3) return false;
    return side <= 16 || (side <= 64 && work < 1e6);
  }
};

struct NauLayer : MatrixLayer {
  static constexpr const char* name = "nau";
  static constexpr std::array<Weight, 1> weights{{{"weight", "OI"}}};
  static constexpr std::array<Option, 1> options{{{"clip", kFlag, kOnFastPath}}};
  static bool weight_is_matrix(const double* options) { return options[0] == 0; }

  template <typename T>
  static NauInputs<T> inputs(const Given<T>& g) {
    const Sizes& n = g.n;
    return {n.models, n.rows, n.in, n.out, g.operands[0], n.shared_x, g.operands[1], g.options[0] != 0};
  }
  template <typename T>
  static NauForward<T> forward(const ForwardCall<T>& c) {
    return {inputs(c.given), c.y, c.matrix};
  }
  template <typename T>
  static NauBackward<T> backward(const BackwardCall<T>& c) {
    return {inputs(c.given), c.grad_y, c.grads[0], c.grads[1], c.grad_matrix != nullptr};
  }
  template <typename T>
  static constexpr auto forward_kernel = &Kernels<T>::nau_forward;
  template <typename T>
  static constexpr auto backward_kernel = &Kernels<T>::nau_backward;
};

using NauFamily = List<NauLayer>;

}  // namespace npu
