// The core's interface: raw pointers in, raw pointers out. Nothing here or below knows torch.
//
// Sizes: K models, B rows, I in-features, O out-features; every array is row-major and contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace npu {

// Runs body(begin, end, context) over a partition of [0, count). The caller brings the threads: torch's own pool in the
// extension, threads of their own in the unit tests. Results never depend on the number of threads. What body throws,
// run throws where it was called.
struct Parallel {
  using Body = void (*)(int64_t begin, int64_t end, void* context);
  int threads = 1;
  void (*run)(int64_t count, Body body, void* context) = nullptr;

  template <typename F>
  void over(int64_t count, const F& f) const {
    if (threads <= 1 || count <= 1 || run == nullptr) {
      if (count > 0) f(int64_t(0), count);
      return;
    }
    run(
        count, [](int64_t begin, int64_t end, void* context) { (*static_cast<const F*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }
};

template <typename T>
struct NpuInputs {
  int64_t models, rows, in, out;
  const T* x;          // [K, B, I], or [B, I] when shared
  bool shared_x;       // one x for all models
  const T* weight_re;  // [K, O, I]
  const T* weight_im;  // [K, O, I]; null: RealNPU
  const T* gate;       // [K, I];    null: NaiveNPU
  T eps;
  // Of bfloat16 that make a float in a product, where the instruction set multiplies these and T is float: 3 are as
  // good as float32 (relative error of a product some 2^-24), 2 leave some 2^-17, 1 leaves some 2^-9.
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

template <typename T>
struct NmuInputs {
  int64_t models, rows, in, out;
  const T* x;  // [K, B, I], or [B, I] when shared
  bool shared_x;
  const T* weight;  // [K, O, I]
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
  T* grad_weight;   // [K, O, I]
};

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
  T* y;  // [K, B, O]
};

template <typename T>
struct NauBackward {
  NauInputs<T> inputs;
  const T* grad_y;  // [K, B, O]
  T* grad_x;        // [K, B, I] even when x is shared; null: not wanted (likewise below)
  T* grad_weight;   // [K, O, I]
};

// K models of N = count values each.
template <typename T>
struct MseInputs {
  int64_t models, count;
  const T* y;       // [K, N]
  const T* target;  // [K, N], or [N] when shared
  bool shared_target;
};

template <typename T>
struct MseForward {
  MseInputs<T> inputs;
  T* loss;  // [K]
};

template <typename T>
struct MseBackward {
  MseInputs<T> inputs;
  const T* grad_loss;  // [K]
  T* grad_y;           // [K, N]
};

struct AdamOptions {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;  // the weight decay acts on the parameter itself (AdamW), not on the gradient
  bool maximize;
};

template <typename T>
struct AdamStep : AdamOptions {
  int64_t count;
  T* parameter;
  const T* grad;
  T *exp_avg, *exp_avg_sq;
  double number;  // of the step, from 1
};

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
  const T* parts;               // of the forward; null: computed again, to the same bits
  T* grad_x;                    // [K, B, I] even when x is shared; null: not wanted (likewise below)
  T *grad_weight_add, *grad_mask_add, *grad_weight_mul, *grad_mask_mul, *grad_gate_weight;  // [K, O, I]
};

// Trajectories whose stages lie beside each other: one or several registers of any instruction set.
constexpr int64_t kOdeBlock = 16;

// u' = A npu(u): K models from B starts each, rows = K B; D features, h hidden units.
template <typename T>
struct OdeInputs {
  int64_t models, starts, features, hidden, steps, stages;
  const T* weight_re;  // [K, h, D]
  const T* weight_im;  // [K, h, D]; null: RealNPU
  const T* gate;       // [K, D];    null: NaiveNPU
  const T* weight;     // [K, D, h], A before the clip
  bool clip;           // A to [-1, 1]
  T eps;
  const double* tableau;  // lower triangle by rows, stages (stages + 1) / 2
  double dt;
  bool last_stage;  // the forward computed the derivative at the last state too

  bool one() const { return models * starts == 1; }
  // With so many, no register holds the starts of two models.
  bool many_starts() const { return starts >= 8; }
  // What the forward leaves for the backward: blocks, stages, values of a stage, trajectories of a block. A single
  // trajectory's values come in whole blocks instead.
  std::array<int64_t, 4> stages_shape() const {
    const auto blocks = [](int64_t count) { return (count + kOdeBlock - 1) / kOdeBlock; };
    const int64_t kept = steps * stages + last_stage;
    if (one()) return {1, kept, 2 * (blocks(features) + blocks(hidden)), kOdeBlock};
    return {many_starts() ? models * blocks(starts) : blocks(models * starts), kept, 2 * (features + hidden),
            kOdeBlock};
  }
};

template <typename T>
struct OdeForward {
  OdeInputs<T> inputs;
  const T* u0;     // [K, B, D]
  T* trajectory;   // [K, B, steps + 1, D]
  T* derivatives;  // the same: A npu(u) at every state; null: not wanted
  T* stages;       // stages_shape(), for the backward; null: not wanted
};

template <typename T>
struct OdeBackward {
  OdeInputs<T> inputs;
  const T* grad_trajectory;   // [K, B, steps + 1, D]; null: zero
  const T* grad_derivatives;  // the same
  const T* trajectory;        // [K, B, steps + 1, D]
  const T* stages;            // what the forward left; null: computed again from the trajectory
  bool straight_through;
  T* grad_u0;         // [K, B, D]; null: not wanted (likewise below)
  T* grad_weight_re;  // [K, h, D]
  T* grad_weight_im;  // [K, h, D]
  T* grad_gate;       // [K, D]
  T* grad_weight;     // [K, D, h]

  // Whether the clips let the gradient of these elements through.
  bool weight_passes(int64_t n) const {
    return !inputs.clip || (inputs.weight[n] >= T(-1) && inputs.weight[n] <= T(1));
  }
  bool gate_passes(int64_t n) const { return straight_through || (inputs.gate[n] >= T(0) && inputs.gate[n] <= T(1)); }
};

// The kernels of one instruction set.
template <typename T>
struct Kernels {
  void (*npu_forward)(const NpuForward<T>&, const Parallel&);
  void (*npu_backward)(const NpuBackward<T>&, const Parallel&);
  void (*nmu_forward)(const NmuForward<T>&, const Parallel&);
  void (*nmu_backward)(const NmuBackward<T>&, const Parallel&);
  void (*nau_forward)(const NauForward<T>&, const Parallel&);
  void (*nau_backward)(const NauBackward<T>&, const Parallel&);
  void (*mse_forward)(const MseForward<T>&, const Parallel&);
  void (*mse_backward)(const MseBackward<T>&, const Parallel&);
  void (*adam)(const AdamStep<T>&, const Parallel&);
  void (*inalu_forward)(const InaluForward<T>&, const Parallel&);
  void (*inalu_backward)(const InaluBackward<T>&, const Parallel&);
  void (*ode_forward)(const OdeForward<T>&, const Parallel&);
  void (*ode_backward)(const OdeBackward<T>&, const Parallel&);
};

// The kernels in use: the best instruction set of this processor, or the one that set_isa chose.
template <typename T>
__attribute__((visibility("default"))) const Kernels<T>& kernels();

// Throws a std::bad_alloc that says so; 0: how much was asked for is not known.
[[noreturn]] __attribute__((visibility("default"))) void out_of_memory(size_t count = 0, const char* unit = "bytes");

const char* isa();               // "baseline", "avx2", "avx512", "avx512_bf16" or "amx"
const char* supported_isas();    // those of this processor, lowest first, comma separated
bool set_isa(const char* name);  // false: unknown, or not supported by this processor

}  // namespace npu
