// The core's interface: raw pointers in, raw pointers out. Nothing here or below depends on torch.
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

// Trajectories whose stages are stored next to each other: one or several registers of any instruction set.
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

  bool complex() const { return weight_im != nullptr; }
  bool one() const { return models * starts == 1; }
  // With so many, no register holds the starts of two models.
  bool many_starts() const { return starts >= 8; }
  // What the forward leaves for the backward: blocks, stages, values of a stage, trajectories of a block. A single
  // trajectory's values come in whole blocks instead.
  std::array<int64_t, 4> stages_shape() const {
    const auto blocks = [](int64_t count) { return (count + kOdeBlock - 1) / kOdeBlock; };
    const int64_t saved = steps * stages + last_stage;
    if (one()) return {1, saved, 2 * (blocks(features) + blocks(hidden)), kOdeBlock};
    return {many_starts() ? models * blocks(starts) : blocks(models * starts), saved, 2 * (features + hidden),
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

// The kernels in use, a table of layers.h: the best instruction set of this processor, or the one that set_isa chose.
// Throws a std::runtime_error where the library has none that this processor can run.
template <typename T>
struct Kernels;
template <typename T>
__attribute__((visibility("default"))) const Kernels<T>& kernels();

// Throws a std::bad_alloc that says so; 0: how much was asked for is not known.
[[noreturn]] __attribute__((visibility("default"))) void out_of_memory(size_t count = 0, const char* unit = "bytes");

// The bfloat16 terms of float32 products that the user allows (NpuInputs::terms): 3, full float32, until a function
// that reads the setting is set. Torch's stable interface has none, so csrc/fast_path brings it.
__attribute__((visibility("default"))) int float_terms();
__attribute__((visibility("default"))) void read_float_terms_by(int (*read)());

// The set in use: "baseline", "avx2", "avx512", "avx512_bf16" or "amx"; the least one that the library has where this
// processor has none of them.
const char* isa();
const char* supported_isas();    // those of this processor, lowest first, comma separated
bool set_isa(const char* name);  // false: unknown, or not supported by this processor

}  // namespace npu
