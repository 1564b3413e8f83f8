// The operators of the ODE solver's fixed steps: checks, allocation, registration.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "layers.h"
#include "operands.h"
#include "platform/threads.h"

namespace {

using npu::absent;
using npu::by_dtype;
using npu::check;
using npu::checked_eps;
using npu::data;
using npu::empty;
using npu::Operand;
using npu::ScalarType;
using npu::shape_of;
using npu::Tensor;

// The sizes of an ODE solver: u0 [B, D] or [K, B, D], weight_re [h, D] or [K, h, D].
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
    // More than the bytes of all that is allocated. A dimension of size 0 leaves the others without memory, so without
    // a bound.
    for (const int64_t width : {features, hidden}) npu::product(op, models, starts, steps, stages, width, 1 << 14);
    npu::product(op, models, starts, features, hidden, 1 << 10);
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
  Tensor du_dt = derivatives ? empty(u0, n.trajectory_shape()) : absent(u0);
  Tensor stages = absent(u0);
  by_dtype(op, u0, [&](auto zero) {
    using T = decltype(zero);
    const OdeOperands<T> operands(op, n, u0, weight_re, weight_im, gate, weight, tableau, dt, eps, clip, derivatives);
    if (save) {
      const auto shape = operands.inputs.stages_shape();
      stages = empty(u0, std::vector<int64_t>(shape.begin(), shape.end()));
    }
    const Operand<T> start(op, "u0", u0, u0.scalar_type(), n.models * n.starts * n.features);
    npu::kernels<T>().ode_forward({operands.inputs, start, data<T>(trajectory), derivatives ? data<T>(du_dt) : nullptr,
                                   save ? data<T>(stages) : nullptr},
                                  n.threads());
  });
  return {trajectory, du_dt, stages};
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
    std::optional<Operand<T>> of_trajectory, of_derivatives, saved;
    if (grad_trajectory) of_trajectory.emplace(op, "grad_trajectory", *grad_trajectory, dtype, states);
    if (grad_derivatives) of_derivatives.emplace(op, "grad_derivatives", *grad_derivatives, dtype, states);
    if (stages.numel() > 0) {
      const auto shape = operands.inputs.stages_shape();
      check(last || !grad_derivatives, op, ": stages were saved without derivatives, so that they have no gradient");
      saved.emplace(op, "stages", stages, dtype, shape[0] * shape[1] * shape[2] * shape[3]);
    }
    const T* none = nullptr;
    npu::kernels<T>().ode_backward(
        {operands.inputs, of_trajectory ? *of_trajectory : none, of_derivatives ? *of_derivatives : none, path,
         saved ? *saved : none, straight_through, needs & 1 ? data<T>(grad_u0) : nullptr,
         needs & 2 ? data<T>(grad_weight_re) : nullptr, needs_im ? data<T>(grad_weight_im) : nullptr,
         needs_gate ? data<T>(grad_gate) : nullptr, needs & 16 ? data<T>(grad_weight) : nullptr},
        n.threads());
  });
  return {grad_u0, grad_weight_re, grad_weight_im, grad_gate, grad_weight};
}

}  // namespace

#define NPU_IMPL(name) library.impl(#name, &npu::naming_memory<TORCH_BOX(&name), StableIValue>)

STABLE_TORCH_LIBRARY_IMPL(npu_kernels, CPU, library) {
  NPU_IMPL(ode_forward);
  NPU_IMPL(ode_backward);
}
