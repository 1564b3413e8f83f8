// The operators' CPU implementations, which know torch. Checks, allocation, registration; the arithmetic
// is core/'s. LibTorch Stable ABI, target 2.10: one binary serves every torch >= 2.10 and every Python. Schemas and
// shape functions are registered by npu_kernels/ops.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/api.h"
#include "out_of_memory.h"
#include "precision.h"
#include "threads.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

std::string shape_of(const Tensor& t) {
  std::ostringstream text;
  text << "(";
  for (int64_t d = 0; d < t.dim(); ++d) text << (d ? ", " : "") << t.size(d);
  text << (t.dim() == 1 ? ",)" : ")");
  return text.str();
}

template <typename... Words>
void check(bool holds, const Words&... words) {
  if (__builtin_expect(holds, 1)) return;
  std::ostringstream text;
  (text << ... << words);
  throw std::runtime_error(text.str());
}

// The sizes of one call, read off the operands, and whether these fit together.
struct Sizes {
  int64_t models, rows, in, out;
  bool batched;   // the weights have a model dimension
  bool shared_x;  // x has none

  Sizes(const char* op, const Tensor& x, const Tensor& weight) {
    const int64_t dims = weight.dim();
    check(dims == 2 || dims == 3, op, ": weight must have 2 dimensions [O, I] or 3 [K, O, I], got shape ",
          shape_of(weight));
    batched = dims == 3;
    models = batched ? weight.size(0) : 1;
    out = weight.size(dims - 2);
    in = weight.size(dims - 1);
    shared_x = batched && x.dim() == 2;
    check(x.dim() == dims || shared_x, op, ": x must have as many dimensions as the weights, or 2, got shape ",
          shape_of(x));
    rows = x.size(x.dim() - 2);
    check(x.size(x.dim() - 1) == in, op, ": x must have last dimension ", in, " (in_features), got shape ",
          shape_of(x));
    check(!batched || shared_x || x.size(0) == models, op, ": x must have first dimension ", models,
          " (num_models), got shape ", shape_of(x));
  }

  std::vector<int64_t> x_shape() const { return shape(in, shared_x); }
  std::vector<int64_t> y_shape() const { return shape(out, false); }

 private:
  std::vector<int64_t> shape(int64_t features, bool shared) const {
    if (batched && !shared) return {models, rows, features};
    return {rows, features};
  }
};

// The stable ABI tells of an error only that there was one. Here torch is asked for nothing that it could refuse: it
// lacks memory.
template <typename F>
Tensor new_tensor(F&& f) {
  try {
    return f();
  } catch (const std::exception&) {
    npu::out_of_memory();
  }
}
Tensor whole(const Tensor& t) {
  return new_tensor([&] { return torch::stable::contiguous(t); });
}
Tensor sum_models(const Tensor& t) {  // [K, ...] -> [...]
  return new_tensor([&] { return torch::stable::sum(t, std::vector<int64_t>{0}); });
}

// An operand as the core reads it: CPU, contiguous, of the call's dtype and of `count` elements.
template <typename T>
class Operand {
 public:
  Operand(const char* op, const char* name, const Tensor& t, ScalarType dtype, int64_t count)
      : tensor_(t.is_contiguous() ? t : whole(t)) {
    check(t.scalar_type() == dtype, op, ": ", name, " must have the dtype of x");
    check(t.is_cpu(), op, ": ", name, " must be on the CPU, like x");
    check(t.numel() == count, op, ": ", name, " must have ", count, " elements, got shape ", shape_of(t));
    data_ = static_cast<const T*>(tensor_.const_data_ptr());
  }
  operator const T*() const { return data_; }

 private:
  Tensor tensor_;  // keeps a contiguous copy alive
  const T* data_;
};

// An uninitialised contiguous tensor. By the allocator's own entry: new_empty looks its operator up by name at every
// call, which costs more than a small layer's arithmetic.
Tensor empty(const Tensor& like, const std::vector<int64_t>& shape, bool integers = false) {
  int32_t dtype = aoti_torch_dtype_int32();
  if (!integers) STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  int64_t strides[4] = {}, step = 1;
  for (size_t d = shape.size(); d-- > 0; step *= shape[d] > 1 ? shape[d] : 1) strides[d] = step;
  AtenTensorHandle handle;
  if (aoti_torch_empty_strided(int64_t(shape.size()), shape.data(), strides, dtype, aoti_torch_device_type_cpu(), -1,
                               &handle) != TORCH_SUCCESS)
    npu::out_of_memory(size_t(step), "elements");
  return Tensor(handle);
}
Tensor absent(const Tensor& like) { return empty(like, {0}); }

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

npu::TorchThreads threads_for(const Sizes& n) { return npu::torch_threads(n.models, n.rows, n.in, n.out); }

template <typename F>
auto by_dtype(const char* op, const Tensor& x, F&& f) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return f(float{});
    case ScalarType::Double:
      return f(double{});
    default:
      throw std::runtime_error(std::string(op) + ": the CPU kernels compute in float32 and float64 only");
  }
}

// The core's logarithms begin at the least normal number.
template <typename T>
T checked_eps(const char* op, double eps) {
  check(eps >= std::numeric_limits<T>::min() && eps <= std::numeric_limits<T>::max(), op,
        ": eps must be finite and at least the least normal number, got ", eps);
  return T(eps);
}

enum Needs : int64_t { kX = 1, kWeightRe = 2, kWeightIm = 4, kGate = 8 };

// The operands that forward and backward share.
template <typename T>
struct NpuOperands {
  Operand<T> x, weight_re;
  std::optional<Operand<T>> weight_im, gate;
  npu::NpuInputs<T> inputs;

  NpuOperands(const char* op, const Sizes& n, const Tensor& x, const Tensor& weight_re,
              const std::optional<Tensor>& weight_im, const std::optional<Tensor>& gate, double eps)
      : x(op, "x", x, x.scalar_type(), (n.shared_x ? 1 : n.models) * n.rows * n.in),
        weight_re(op, "weight_re", weight_re, x.scalar_type(), n.models * n.out * n.in) {
    if (weight_im) this->weight_im.emplace(op, "weight_im", *weight_im, x.scalar_type(), n.models * n.out * n.in);
    if (gate) this->gate.emplace(op, "gate", *gate, x.scalar_type(), n.models * n.in);
    inputs = {n.models,
              n.rows,
              n.in,
              n.out,
              this->x,
              n.shared_x,
              this->weight_re,
              this->weight_im ? *this->weight_im : static_cast<const T*>(nullptr),
              this->gate ? *this->gate : static_cast<const T*>(nullptr),
              checked_eps<T>(op, eps),
              npu::float_terms()};
  }
};

std::tuple<Tensor, Tensor> npu_forward(const Tensor& x, const Tensor& weight_re, std::optional<Tensor> weight_im,
                                       std::optional<Tensor> gate, double eps, bool save_sin) {
  const char* op = "npu_forward";
  const Sizes n(op, x, weight_re);
  Tensor y = empty(x, n.y_shape());
  Tensor s = save_sin ? empty(x, n.y_shape()) : absent(x);
  by_dtype(op, x, [&](auto zero) {
    using T = decltype(zero);
    const NpuOperands<T> operands(op, n, x, weight_re, weight_im, gate, eps);
    npu::kernels<T>().npu_forward({operands.inputs, data<T>(y), save_sin ? data<T>(s) : nullptr}, threads_for(n));
  });
  return {y, s};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> npu_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight_re,
                                                        std::optional<Tensor> weight_im, std::optional<Tensor> gate,
                                                        const Tensor& y, const Tensor& s, double eps,
                                                        bool straight_through, int64_t needs) {
  const char* op = "npu_backward";
  const Sizes n(op, x, weight_re);
  const std::vector<int64_t> weight_shape(weight_re.sizes().begin(), weight_re.sizes().end());
  // A shared x gets one gradient per model, added up below.
  const bool per_model = n.shared_x && n.models != 1;
  Tensor grad_x = !(needs & kX) ? absent(x) : per_model ? empty(x, {n.models, n.rows, n.in}) : empty(x, n.x_shape());
  Tensor grad_weight_re = needs & kWeightRe ? empty(x, weight_shape) : absent(x);
  Tensor grad_weight_im = weight_im && needs & kWeightIm ? empty(x, weight_shape) : absent(x);
  Tensor grad_gate =
      gate && needs & kGate ? empty(x, std::vector<int64_t>(gate->sizes().begin(), gate->sizes().end())) : absent(x);
  by_dtype(op, x, [&](auto zero) {
    using T = decltype(zero);
    const NpuOperands<T> operands(op, n, x, weight_re, weight_im, gate, eps);
    const int64_t outputs = n.models * n.rows * n.out;
    const Operand<T> upstream(op, "grad_y", grad_y, x.scalar_type(), outputs);
    const Operand<T> cosine(op, "y", y, x.scalar_type(), outputs), sine(op, "s", s, x.scalar_type(), outputs);
    npu::kernels<T>().npu_backward(
        {operands.inputs, upstream, cosine, sine, straight_through, needs & kX ? data<T>(grad_x) : nullptr,
         needs & kWeightRe ? data<T>(grad_weight_re) : nullptr,
         weight_im && needs & kWeightIm ? data<T>(grad_weight_im) : nullptr,
         gate && needs & kGate ? data<T>(grad_gate) : nullptr},
        threads_for(n));
  });
  if (needs & kX && per_model) grad_x = sum_models(grad_x);
  return {grad_x, grad_weight_re, grad_weight_im, grad_gate};
}

template <typename T>
npu::NmuInputs<T> nmu_inputs(const Sizes& n, const Operand<T>& x, const Operand<T>& weight) {
  return {n.models, n.rows, n.in, n.out, x, n.shared_x, weight};
}

Tensor nmu_forward(const Tensor& x, const Tensor& weight) {
  const char* op = "nmu_forward";
  const Sizes n(op, x, weight);
  Tensor y = empty(x, n.y_shape());
  by_dtype(op, x, [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> inputs(op, "x", x, x.scalar_type(), (n.shared_x ? 1 : n.models) * n.rows * n.in);
    const Operand<T> weights(op, "weight", weight, x.scalar_type(), n.models * n.out * n.in);
    npu::kernels<T>().nmu_forward({nmu_inputs<T>(n, inputs, weights), data<T>(y)}, threads_for(n));
  });
  return y;
}

std::tuple<Tensor, Tensor> nmu_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, int64_t needs) {
  const char* op = "nmu_backward";
  const Sizes n(op, x, weight);
  const bool per_model = n.shared_x && n.models != 1;
  Tensor grad_x = !(needs & kX) ? absent(x) : per_model ? empty(x, {n.models, n.rows, n.in}) : empty(x, n.x_shape());
  Tensor grad_weight =
      needs & kWeightRe ? empty(x, std::vector<int64_t>(weight.sizes().begin(), weight.sizes().end())) : absent(x);
  by_dtype(op, x, [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> inputs(op, "x", x, x.scalar_type(), (n.shared_x ? 1 : n.models) * n.rows * n.in);
    const Operand<T> weights(op, "weight", weight, x.scalar_type(), n.models * n.out * n.in);
    const Operand<T> upstream(op, "grad_y", grad_y, x.scalar_type(), n.models * n.rows * n.out);
    npu::kernels<T>().nmu_backward({nmu_inputs<T>(n, inputs, weights), upstream, needs & kX ? data<T>(grad_x) : nullptr,
                                    needs & kWeightRe ? data<T>(grad_weight) : nullptr},
                                   threads_for(n));
  });
  if (needs & kX && per_model) grad_x = sum_models(grad_x);
  return {grad_x, grad_weight};
}

// The operands that iNALU's forward and backward share.
template <typename T>
struct InaluOperands {
  Operand<T> x, weight_add, mask_add, weight_mul, mask_mul, gate_weight;
  npu::InaluInputs<T> inputs;

  InaluOperands(const char* op, const Sizes& n, const Tensor& x, const Tensor& weight_add, const Tensor& mask_add,
                const Tensor& weight_mul, const Tensor& mask_mul, const Tensor& gate_weight, double eps, double omega)
      : x(op, "x", x, x.scalar_type(), (n.shared_x ? 1 : n.models) * n.rows * n.in),
        weight_add(op, "weight_add", weight_add, x.scalar_type(), n.models * n.out * n.in),
        mask_add(op, "mask_add", mask_add, x.scalar_type(), n.models * n.out * n.in),
        weight_mul(op, "weight_mul", weight_mul, x.scalar_type(), n.models * n.out * n.in),
        mask_mul(op, "mask_mul", mask_mul, x.scalar_type(), n.models * n.out * n.in),
        gate_weight(op, "gate_weight", gate_weight, x.scalar_type(), n.models * n.out * n.in) {
    inputs = {n.models,
              n.rows,
              n.in,
              n.out,
              this->x,
              n.shared_x,
              this->weight_add,
              this->mask_add,
              this->weight_mul,
              this->mask_mul,
              this->gate_weight,
              checked_eps<T>(op, eps),
              T(omega)};
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> inalu_forward(const Tensor& x, const Tensor& weight_add,
                                                                 const Tensor& mask_add, const Tensor& weight_mul,
                                                                 const Tensor& mask_mul, const Tensor& gate_weight,
                                                                 double eps, double omega, bool save) {
  const char* op = "inalu_forward";
  const Sizes n(op, x, weight_add);
  const std::vector<int64_t> saved = save ? n.y_shape() : std::vector<int64_t>{0};
  Tensor y = empty(x, n.y_shape()), h = empty(x, saved), a = empty(x, saved), t = empty(x, saved);
  Tensor flags = empty(x, saved, /*integers=*/true);
  by_dtype(op, x, [&](auto zero) {
    using T = decltype(zero);
    const InaluOperands<T> operands(op, n, x, weight_add, mask_add, weight_mul, mask_mul, gate_weight, eps, omega);
    const auto kept = [&](const Tensor& tensor) { return save ? data<T>(tensor) : nullptr; };
    npu::kernels<T>().inalu_forward(
        {operands.inputs, data<T>(y), kept(h), kept(a), kept(t), save ? data<int32_t>(flags) : nullptr, nullptr},
        threads_for(n));
  });
  return {y, h, a, t, flags};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> inalu_backward(
    const Tensor& grad_y, const Tensor& x, const Tensor& weight_add, const Tensor& mask_add, const Tensor& weight_mul,
    const Tensor& mask_mul, const Tensor& gate_weight, const Tensor& h, const Tensor& a, const Tensor& t,
    const Tensor& flags, double eps, double omega, int64_t needs) {
  const char* op = "inalu_backward";
  const Sizes n(op, x, weight_add);
  const bool per_model = n.shared_x && n.models != 1;
  Tensor grad_x = !(needs & kX) ? absent(x) : per_model ? empty(x, {n.models, n.rows, n.in}) : empty(x, n.x_shape());
  const std::vector<int64_t> weight_shape(weight_add.sizes().begin(), weight_add.sizes().end());
  std::vector<Tensor> grads;
  for (int bit = 1; bit <= 5; ++bit) grads.push_back(needs >> bit & 1 ? empty(x, weight_shape) : absent(x));
  by_dtype(op, x, [&](auto zero) {
    using T = decltype(zero);
    const InaluOperands<T> operands(op, n, x, weight_add, mask_add, weight_mul, mask_mul, gate_weight, eps, omega);
    const int64_t outputs = n.models * n.rows * n.out;
    const Operand<T> upstream(op, "grad_y", grad_y, x.scalar_type(), outputs),
        gate(op, "h", h, x.scalar_type(), outputs);
    const Operand<T> sum(op, "a", a, x.scalar_type(), outputs), product(op, "t", t, x.scalar_type(), outputs);
    check(flags.scalar_type() == ScalarType::Int && flags.is_cpu() && flags.numel() == outputs, op,
          ": flags must be int32 on the CPU with ", outputs, " elements, got shape ", shape_of(flags));
    const Tensor all_flags = flags.is_contiguous() ? flags : whole(flags);
    const auto into = [&](int bit) { return needs >> bit & 1 ? data<T>(grads[bit - 1]) : nullptr; };
    npu::kernels<T>().inalu_backward(
        {operands.inputs, upstream, gate, sum, product, static_cast<const int32_t*>(all_flags.const_data_ptr()),
         nullptr, needs & kX ? data<T>(grad_x) : nullptr, into(1), into(2), into(3), into(4), into(5)},
        threads_for(n));
  });
  if (needs & kX && per_model) grad_x = sum_models(grad_x);
  return {grad_x, grads[0], grads[1], grads[2], grads[3], grads[4]};
}

// The sizes of a time loop: u0 [B, D] or [K, B, D], weight_re [h, D] or [K, h, D].
struct OdeSizes {
  int64_t models, starts, features, hidden, steps, stages;
  bool batched;

  OdeSizes(const char* op, const Tensor& starts_of, int64_t dims, const Tensor& weight_re, int64_t tableau,
           int64_t steps)
      : steps(steps), stages(1) {
    check(weight_re.dim() == 2 || weight_re.dim() == 3, op, ": weight_re must have shape (h, D) or (K, h, D), got ",
          shape_of(weight_re));
    batched = weight_re.dim() == 3;
    models = batched ? weight_re.size(0) : 1;
    hidden = weight_re.size(weight_re.dim() - 2);
    features = weight_re.size(weight_re.dim() - 1);
    const bool fits = starts_of.dim() == weight_re.dim() + dims && (!batched || starts_of.size(0) == models) &&
                      starts_of.size(starts_of.dim() - 1) == features;
    check(fits, op, ": the states must have shape (", batched ? "K, " : "", "B, ", dims ? "steps + 1, " : "", features,
          "), got ", shape_of(starts_of));
    starts = starts_of.size(batched ? 1 : 0);
    while (stages * (stages + 1) / 2 < tableau) ++stages;
    check(stages * (stages + 1) / 2 == tableau, op, ": tableau must be a lower triangle by rows, got ", tableau,
          " numbers");
    check(steps > 0, op, ": steps must be positive, got ", steps);
  }

  std::vector<int64_t> start_shape() const { return shape({starts, features}); }
  std::vector<int64_t> trajectory_shape() const { return shape({starts, steps + 1, features}); }
  npu::TorchThreads threads() const { return npu::ode_threads(models * starts, steps * stages, features, hidden); }

 private:
  std::vector<int64_t> shape(std::vector<int64_t> of_model) const {
    if (batched) of_model.insert(of_model.begin(), models);
    return of_model;
  }
};

template <typename T>
struct OdeOperands {
  Operand<T> weight_re, weight;
  std::optional<Operand<T>> weight_im, gate;
  npu::OdeInputs<T> inputs;

  OdeOperands(const char* op, const OdeSizes& n, const Tensor& like, const Tensor& weight_re,
              const std::optional<Tensor>& weight_im, const std::optional<Tensor>& gate, const Tensor& weight,
              const std::vector<double>& tableau, double dt, double eps, bool clip, bool last_stage)
      : weight_re(op, "weight_re", weight_re, like.scalar_type(), n.models * n.hidden * n.features),
        weight(op, "weight", weight, like.scalar_type(), n.models * n.hidden * n.features) {
    const ScalarType dtype = like.scalar_type();
    if (weight_im) this->weight_im.emplace(op, "weight_im", *weight_im, dtype, n.models * n.hidden * n.features);
    if (gate) this->gate.emplace(op, "gate", *gate, dtype, n.models * n.features);
    inputs = {n.models,
              n.starts,
              n.features,
              n.hidden,
              n.steps,
              n.stages,
              this->weight_re,
              this->weight_im ? *this->weight_im : static_cast<const T*>(nullptr),
              this->gate ? *this->gate : static_cast<const T*>(nullptr),
              this->weight,
              clip,
              checked_eps<T>(op, eps),
              tableau.data(),
              dt,
              last_stage};
  }
};

std::tuple<Tensor, Tensor, Tensor> ode_forward(const Tensor& u0, const Tensor& weight_re,
                                               std::optional<Tensor> weight_im, std::optional<Tensor> gate,
                                               const Tensor& weight, std::vector<double> tableau, int64_t steps,
                                               double dt, double eps, bool clip, bool derivatives, bool save) {
  const char* op = "ode_forward";
  const OdeSizes n(op, u0, 0, weight_re, int64_t(tableau.size()), steps);
  Tensor trajectory = empty(u0, n.trajectory_shape());
  Tensor slopes = derivatives ? empty(u0, n.trajectory_shape()) : absent(u0);
  Tensor stages = absent(u0);
  by_dtype(op, u0, [&](auto zero) {
    using T = decltype(zero);
    const OdeOperands<T> operands(op, n, u0, weight_re, weight_im, gate, weight, tableau, dt, eps, clip, derivatives);
    if (save) {
      const auto shape = operands.inputs.stages_shape();
      stages = empty(u0, std::vector<int64_t>(shape.begin(), shape.end()));
    }
    const Operand<T> start(op, "u0", u0, u0.scalar_type(), n.models * n.starts * n.features);
    npu::kernels<T>().ode_forward({operands.inputs, start, data<T>(trajectory), derivatives ? data<T>(slopes) : nullptr,
                                   save ? data<T>(stages) : nullptr},
                                  n.threads());
  });
  return {trajectory, slopes, stages};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> ode_backward(
    std::optional<Tensor> grad_trajectory, std::optional<Tensor> grad_derivatives, const Tensor& trajectory,
    const Tensor& weight_re, std::optional<Tensor> weight_im, std::optional<Tensor> gate, const Tensor& weight,
    const Tensor& stages, std::vector<double> tableau, double dt, double eps, bool clip, bool straight_through,
    int64_t needs) {
  const char* op = "ode_backward";
  check(trajectory.dim() > 2, op, ": trajectory must have shape (K, B, steps + 1, D) or (B, steps + 1, D), got ",
        shape_of(trajectory));
  const OdeSizes n(op, trajectory, 1, weight_re, int64_t(tableau.size()), trajectory.size(trajectory.dim() - 2) - 1);
  const auto like = [&](const Tensor& t, bool wanted) {
    return wanted ? empty(trajectory, std::vector<int64_t>(t.sizes().begin(), t.sizes().end())) : absent(trajectory);
  };
  const bool needs_im = weight_im && needs & 4, needs_gate = gate && needs & 8;
  Tensor grad_u0 = needs & 1 ? empty(trajectory, n.start_shape()) : absent(trajectory);
  Tensor grad_weight_re = like(weight_re, needs & 2), grad_weight_im = like(weight_im.value_or(weight), needs_im);
  Tensor grad_gate = like(gate.value_or(weight), needs_gate), grad_weight = like(weight, needs & 16);
  by_dtype(op, trajectory, [&](auto zero) {
    using T = decltype(zero);
    const ScalarType dtype = trajectory.scalar_type();
    const bool last = stages.numel() > 0 ? stages.size(1) > n.steps * n.stages : bool(grad_derivatives);
    const OdeOperands<T> operands(op, n, trajectory, weight_re, weight_im, gate, weight, tableau, dt, eps, clip, last);
    const int64_t states = n.models * n.starts * (n.steps + 1) * n.features;
    const Operand<T> path(op, "trajectory", trajectory, dtype, states);
    std::optional<Operand<T>> of_trajectory, of_derivatives, kept;
    if (grad_trajectory) of_trajectory.emplace(op, "grad_trajectory", *grad_trajectory, dtype, states);
    if (grad_derivatives) of_derivatives.emplace(op, "grad_derivatives", *grad_derivatives, dtype, states);
    if (stages.numel() > 0) {
      const auto shape = operands.inputs.stages_shape();
      check(last || !grad_derivatives, op, ": stages were kept without derivatives, so that they have no gradient");
      kept.emplace(op, "stages", stages, dtype, shape[0] * shape[1] * shape[2] * shape[3]);
    }
    const T* none = nullptr;
    npu::kernels<T>().ode_backward(
        {operands.inputs, of_trajectory ? *of_trajectory : none, of_derivatives ? *of_derivatives : none, path,
         kept ? *kept : none, straight_through, needs & 1 ? data<T>(grad_u0) : nullptr,
         needs & 2 ? data<T>(grad_weight_re) : nullptr, needs_im ? data<T>(grad_weight_im) : nullptr,
         needs_gate ? data<T>(grad_gate) : nullptr, needs & 16 ? data<T>(grad_weight) : nullptr},
        n.threads());
  });
  return {grad_u0, grad_weight_re, grad_weight_im, grad_gate, grad_weight};
}

template <void (*boxed)(StableIValue*, uint64_t, uint64_t)>
void naming_memory(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  npu::naming_memory([&] { boxed(stack, inputs, outputs); });
}

}  // namespace

#define NPU_IMPL(name) library.impl(#name, &naming_memory<TORCH_BOX(&name)>)

STABLE_TORCH_LIBRARY_IMPL(npu_kernels, CPU, library) {
  NPU_IMPL(npu_forward);
  NPU_IMPL(npu_backward);
  NPU_IMPL(nmu_forward);
  NPU_IMPL(nmu_backward);
  NPU_IMPL(inalu_forward);
  NPU_IMPL(inalu_backward);
  NPU_IMPL(ode_forward);
  NPU_IMPL(ode_backward);
}

// For ctypes (npu_kernels/backends/cpu.py).
extern "C" {
__attribute__((visibility("default"))) const char* npu_kernels_isa() { return npu::isa(); }
__attribute__((visibility("default"))) const char* npu_kernels_supported_isas() { return npu::supported_isas(); }
__attribute__((visibility("default"))) int npu_kernels_set_isa(const char* name) { return npu::set_isa(name) ? 0 : 1; }
}
