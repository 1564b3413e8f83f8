// The ODE solver's function and autograd node.
#pragma once

#include <ATen/ExpandUtils.h>

#include <cmath>
#include <vector>

#include "common.h"

namespace npu_fast_path {

// Sizes and options of a rollout. `many`: the starts have a dimension of their own.
struct Rollout {
  int64_t models = 1, starts = 1, features = 0, hidden = 0, steps = 0;
  bool batched = false, many = false;
  std::vector<double> tableau;  // lower triangle by rows
  double dt = 0, eps = 0;
  bool clip = true, straight_through = false, derivatives = false, keep = true;

  int64_t stages() const {
    int64_t count = 1;
    while (count * (count + 1) / 2 < int64_t(tableau.size())) ++count;
    return count;
  }

  // Whether the operands belong together, and their sizes.
  bool fit(const Tensor& u0, const Tensor& weight_re, const Tensor& weight_im, const Tensor& gate,
           const Tensor& weight) {
    const auto shape = weight_re.sizes(), from = u0.sizes();
    batched = shape.size() == 3;
    if ((!batched && shape.size() != 2) || u0.numel() == 0 || weight_re.numel() == 0) return false;
    models = batched ? shape[0] : 1;
    hidden = shape[shape.size() - 2];
    features = shape.back();
    many = from.size() == (batched ? 3 : 2);
    starts = many ? from[from.size() - 2] : 1;
    if (from.empty() || from.size() > shape.size() || from.back() != features) return false;
    if (batched && from.size() > 1 && from[0] != models && !(many && from[0] == 1)) return false;
    const auto is = [&](const Tensor& t, int64_t rows, int64_t columns) {
      c10::SmallVector<int64_t, 3> expected;
      if (batched) expected.push_back(models);
      if (rows) expected.push_back(rows);
      expected.push_back(columns);
      return !t.defined() || t.sizes() == expected;
    };
    return is(weight_im, hidden, features) && is(gate, 0, features) && is(weight, features, hidden);
  }

  // The shape of what has a row for each of these states, or for each start.
  c10::SmallVector<int64_t, 4> shape(int64_t states) const {
    c10::SmallVector<int64_t, 4> found;
    if (batched) found.push_back(models);
    if (many) found.push_back(starts);
    if (states) found.push_back(states);
    found.push_back(features);
    return found;
  }

  // u0 as the core reads it: [K, B, D].
  Tensor rows(const Tensor& u0) const {
    if (u0.numel() == models * starts * features) return u0.contiguous();
    return u0.expand(shape(0)).contiguous();
  }

  npu::TorchThreads threads() const { return npu::ode_threads(models * starts, steps * stages(), features, hidden); }
};

struct Weights {
  Tensor weight_re, weight_im, gate, weight;  // contiguous

  template <typename T>
  npu::OdeInputs<T> inputs(const Rollout& r, bool last_stage) const {
    const auto data = [](const Tensor& t) { return t.defined() ? t.const_data_ptr<T>() : nullptr; };
    return {r.models,   r.starts,        r.features,       r.hidden,   r.steps,
            r.stages(), data(weight_re), data(weight_im),  data(gate), data(weight),
            r.clip,     T(r.eps),        r.tableau.data(), r.dt,       last_stage};
  }
};

inline Weights contiguous(const Tensor& weight_re, const Tensor& weight_im, const Tensor& gate, const Tensor& weight) {
  const auto rows = [](const Tensor& t) { return t.defined() ? t.contiguous() : t; };
  return {rows(weight_re), rows(weight_im), rows(gate), rows(weight)};
}

struct RolloutResult {
  Tensor trajectory, derivatives, stages;
};

inline RolloutResult rollout_forward(const Rollout& r, const Tensor& u0, const Tensor& weight_re,
                                     const Tensor& weight_im, const Tensor& gate, const Tensor& weight, bool keep) {
  const Weights weights = contiguous(weight_re, weight_im, gate, weight);
  const Tensor start = r.rows(u0);
  RolloutResult found{uninitialised(r.shape(r.steps + 1), u0.options()), {}, {}};
  if (r.derivatives) found.derivatives = uninitialised(r.shape(r.steps + 1), u0.options());
  by_dtype(u0.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const npu::OdeInputs<T> inputs = weights.inputs<T>(r, r.derivatives);
    if (keep) found.stages = uninitialised(inputs.stages_shape(), u0.options());
    npu::kernels<T>().ode_forward({inputs, start.const_data_ptr<T>(), found.trajectory.mutable_data_ptr<T>(),
                                   r.derivatives ? found.derivatives.mutable_data_ptr<T>() : nullptr,
                                   keep ? found.stages.mutable_data_ptr<T>() : nullptr},
                                  r.threads());
  });
  return found;
}

// Gradients of u0 and the four weights; `saved` as RolloutFastPath saves it, `grads` of the trajectory and derivatives.
inline variable_list rollout_backward(const Rollout& r, const variable_list& grads, const variable_list& saved,
                                      int64_t needs) {
  const Weights weights = contiguous(saved[1], saved[2], saved[3], saved[4]);
  const Tensor trajectory = saved[5].contiguous(), stages = saved[6];
  const auto rows = [&](const Tensor& t) { return t.defined() ? t.contiguous() : t; };
  const Tensor of_trajectory = rows(grads[0]), of_derivatives = rows(r.derivatives ? grads[1] : Tensor());
  const Tensor saved_stages = rows(stages);
  variable_list found(5);
  for (size_t i = 1; i < 5; ++i)
    if (needs >> i & 1) found[i] = uninitialised(saved[i].sizes(), trajectory.options());
  if (needs & 1) found[0] = uninitialised(r.shape(0), trajectory.options());
  by_dtype(trajectory.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto data = [](const Tensor& t) { return t.defined() ? t.const_data_ptr<T>() : nullptr; };
    const auto out = [&](int i) { return found[i].defined() ? found[i].mutable_data_ptr<T>() : nullptr; };
    const bool last = saved_stages.defined() ? r.derivatives : of_derivatives.defined();
    npu::kernels<T>().ode_backward(
        {weights.inputs<T>(r, last), data(of_trajectory), data(of_derivatives), data(trajectory), data(saved_stages),
         r.straight_through, out(0), out(1), out(2), out(3), out(4)},
        r.threads());
  });
  if (needs & 1) found[0] = at::sum_to(std::move(found[0]), saved[0].sizes());
  return found;
}

struct RolloutFastPath : Node<RolloutFastPath> {
  static constexpr size_t kInputs = 5;

  static variable_list forward(AutogradContext* ctx, const Tensor& u0, const Tensor& weight_re,
                               const std::optional<Tensor>& weight_im, const std::optional<Tensor>& gate,
                               const Tensor& weight, const Rollout& r) {
    const Tensor im = weight_im.value_or(Tensor()), g = gate.value_or(Tensor());
    RolloutResult found = rollout_forward(r, u0, weight_re, im, g, weight, r.keep);
    ctx->save_for_backward({u0, weight_re, im, g, weight, found.trajectory, found.stages});
    std::vector<double> options{r.dt, r.eps, double(r.clip), double(r.straight_through), double(r.derivatives)};
    options.insert(options.end(), r.tableau.begin(), r.tableau.end());
    ctx->saved_data["options"] = std::move(options);  // one entry: each costs as much as a dozen steps
    ctx->set_materialize_grads(false);
    if (!r.derivatives) return {found.trajectory};
    return {found.trajectory, found.derivatives};
  }

  static variable_list gradients(AutogradContext* ctx, const variable_list& grads) {
    constexpr size_t kArguments = kInputs + 1;
    bool any = false;
    for (const Tensor& grad : grads) any |= grad.defined();
    if (!any) return variable_list(kArguments);
    const variable_list saved = ctx->get_saved_variables();
    const int64_t needs = needed(ctx, saved, kInputs);
    const std::vector<double> options = ctx->saved_data["options"].toDoubleVector();
    Rollout r;
    r.fit(saved[0], saved[1], saved[2], saved[3], saved[4]);
    r.steps = saved[5].size(-2) - 1;
    r.dt = options[0], r.eps = options[1];
    r.clip = options[2] != 0, r.straight_through = options[3] != 0, r.derivatives = options[4] != 0;
    r.tableau.assign(options.begin() + 5, options.end());
    bool fast = true;
    for (const Tensor& grad : grads) fast &= !grad.defined() || fast_backward(grad, saved);
    variable_list found = fast ? rollout_backward(r, grads, saved, needs)
                               : call_general("ode", kInputs, grads[0], r.derivatives ? grads[1] : Tensor(), saved[0],
                                              saved[5], saved[1], saved[2], saved[3], saved[4], saved[6], r.tableau,
                                              r.dt, r.eps, r.clip, r.straight_through, r.many, needs);
    found.resize(kArguments);
    return found;
  }
};

// A state that is not finite stays so: checking the last states is enough.
template <typename T>
bool ends_finite(const Tensor& t, const Rollout& r) {
  if (!t.defined()) return true;
  const T* values = t.const_data_ptr<T>();
  const int64_t stride = (r.steps + 1) * r.features;
  for (int64_t row = 0; row < r.models * r.starts; ++row)
    for (int64_t d = 0; d < r.features; ++d)
      if (!std::isfinite(values[row * stride + r.steps * r.features + d])) return false;
  return true;
}

inline bool unpack_tableau(PyObject* object, std::vector<double>& tableau) {
  if (!PyTuple_CheckExact(object)) return false;
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(object); ++n) {
    PyObject* value = PyTuple_GET_ITEM(object, n);
    if (!PyFloat_CheckExact(value)) return false;
    tableau.push_back(PyFloat_AS_DOUBLE(value));
  }
  return true;
}

inline PyObject* ode(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 13 || !THPVariable_CheckExact(args[0]) || args[1] == Py_None || args[4] == Py_None)
    Py_RETURN_NOTIMPLEMENTED;
  const at::ScalarType dtype = THPVariable_Unpack(args[0]).scalar_type();
  Tensor u0, weight_re, weight_im, gate, weight;
  Rollout r;
  r.straight_through = is(args[9], "straight_through");
  r.clip = args[10] == Py_True;
  r.keep = is(args[11], "full");
  r.derivatives = args[12] == Py_True;
  if (!real(dtype) || !nothing_watches() || !unpack(args[0], dtype, u0) || !unpack(args[1], dtype, weight_re) ||
      !unpack(args[2], dtype, weight_im) || !unpack(args[3], dtype, gate) || !unpack(args[4], dtype, weight) ||
      !unpack_tableau(args[5], r.tableau) || !PyLong_CheckExact(args[6]) || !PyFloat_CheckExact(args[7]) ||
      !unpack_eps(args[8], dtype, r.eps) || !(r.straight_through || is(args[9], "clip")) ||
      !(r.clip || args[10] == Py_False) || !(r.keep || is(args[11], "checkpointed")) ||
      !(r.derivatives || args[12] == Py_False) || !r.fit(u0, weight_re, weight_im, gate, weight))
    Py_RETURN_NOTIMPLEMENTED;
  int overflow = 0;
  r.steps = PyLong_AsLongLongAndOverflow(args[6], &overflow);  // -1 where it overflows
  r.dt = PyFloat_AS_DOUBLE(args[7]);
  if (r.steps < 1 || !std::isfinite(r.dt) || r.dt == 0) Py_RETURN_NOTIMPLEMENTED;
  const bool differentiable =
      at::GradMode::is_enabled() &&
      (needs_grad(weight_re) || needs_grad(u0) || needs_grad(weight) || needs_grad(gate) || needs_grad(weight_im));
  if (differentiable && hooks_see_saved()) Py_RETURN_NOTIMPLEMENTED;
  variable_list found;
  bool finite = true;
  {
    const pybind11::gil_scoped_release without_gil;
    const auto optional = [](const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; };
    if (differentiable) {
      found = RolloutFastPath::apply(u0, weight_re, optional(weight_im), optional(gate), weight, r);
    } else {
      RolloutResult result = rollout_forward(r, u0, weight_re, weight_im, gate, weight, false);
      found = {result.trajectory, result.derivatives};
    }
    found.resize(2);
    by_dtype(dtype, [&](auto zero) {
      using T = decltype(zero);
      finite = ends_finite<T>(found[0], r) && ends_finite<T>(found[1], r);
    });
  }
  PyObject* derivatives = found[1].defined() ? THPVariable_Wrap(std::move(found[1])) : Py_NewRef(Py_None);
  return Py_BuildValue("NNN", THPVariable_Wrap(std::move(found[0])), derivatives, PyBool_FromLong(finite));
}

}  // namespace npu_fast_path
