// One record for each layer: the C++ description of its operators. The registered operators (operators/layers.cpp) and
// the fast path from Python (fast_path/layer.h) are made from it. ops.py has the schemas, with the same names.
#pragma once

#include <array>
#include <cstdint>

#include "api.h"

namespace npu {

// K models, B rows, I in-features, O out-features of a call.
struct Sizes {
  int64_t models, rows, in, out;
  bool shared_x;  // x is [B, I], the same for all models
};

struct Weight {
  const char* name;
  const char* shape;  // behind K, in sizes: O, I, and J for 2 I; the first weight's is OI or OJ
  bool optional = false;
};

enum OptionKind {
  kEps,          // a positive number; on the fast path None is the machine's epsilon
  kPositive,     // at least the least normal number
  kNotNegative,  // likewise, or 0
  kFlag,         // a bool
  kWord,         // a bool, which the fast path gets as one of two words
};
enum OptionPlace { kInForward = 1, kInBackward = 2, kOnFastPath = 4 };

// A number or bool that comes after the tensors; 0 where it is not an argument.
struct Option {
  const char* name;
  OptionKind kind;
  int places = kInForward | kInBackward | kOnFastPath;
  std::array<const char*, 2> words{};  // that mean 0 and 1
};

// What the forward saves for the backward, in addition to y.
struct Saved {
  enum Kind {
    kReal,   // of y's shape and dtype
    kFlags,  // of y's shape, int32
    kParts,  // `parts` of each weight's elements; on the fast path alone
  };
  const char* name;
  Kind kind = kReal;
  int parts = 0;
};

// The pointers of a call, null where something is absent or not wanted.
template <typename T>
struct Given {
  Sizes n;
  const T* const* operands;  // x and the weights
  const double* options;
};
template <typename T>
struct ForwardCall {
  Given<T> given;
  T* y;
  void* const* saved;
  T* matrix = nullptr;  // of a by_matrix layer: what y would be x times of is wanted, here, and y is null

  template <typename V>
  V* saved_as(size_t index) const {
    return static_cast<V*>(saved[index]);
  }
};
template <typename T>
struct BackwardCall {
  Given<T> given;
  const T* grad_y;
  const T* y;  // where the layer takes it
  const void* const* saved;
  T* const* grads;                 // of x, for each model even when x is shared, and of the weights
  const T* grad_matrix = nullptr;  // of a by_matrix layer: the matrix' gradient, which is known; grad_y is null

  template <typename V>
  const V* saved_as(size_t index) const {
    return static_cast<const V*>(saved[index]);
  }
};

// Forward, mean squared error and backward as one kernel.
template <typename T>
struct StepCall {
  BackwardCall<T> backward;  // grad_y, y, what is saved and the gradient of x: null
  int64_t next_x;            // elements from one model's x to the next one's
  const T* target;
  int64_t next_target;
  T* loss;  // of each model; null: not wanted
};

// What most layers have. A layer adds name, weights, options; forward and backward, which turn a call into its kernels'
// argument; forward_kernel and backward_kernel.
struct Layer {
  static constexpr std::array<Saved, 0> saved{};
  static constexpr bool takes_y = false;    // the backward, beside what is saved
  static constexpr bool registered = true;  // as operators
  static constexpr bool by_matrix = false;  // nau.h
  static constexpr bool second = false;     // kernels for second derivatives
  // Whether the kernels take the whole call; single: in float32.
  static bool takes(const Sizes&, bool) { return true; }
  // False where there is no such kernel for the call; then nothing was done.
  template <typename T>
  static bool step(const StepCall<T>&) {
    return false;
  }
};

// Whether the weights have a column for each input twice (J); what a row costs then.
template <typename L>
constexpr bool doubles_inputs() {
  return L::weights[0].shape[1] == 'J';
}
template <typename L>
constexpr int64_t factors(const Sizes& n) {
  return doubles_inputs<L>() ? 2 * n.in : n.in;
}

template <typename... Layers>
struct List {};

}  // namespace npu
