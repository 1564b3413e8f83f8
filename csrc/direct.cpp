// The direct way from Python to the core, for plain CPU tensors: one call does what the module's checks, an
// autograd.Function and a registered operator do otherwise, for a fifth of their cost, which is most of a small layer's
// time. A Python module `direct` with
//
//   npu(x, weight_re, weight_im, gate, eps, gate_gradient)      as npu_kernels.functional.npu
//       y, with its derivative, or NotImplemented: the general way has to be taken. It is for everything that is not
//       plain (subclasses, transforms, modes, autocast, tangents, other devices and dtypes, empty tensors) and for
//       every error, so that messages, special cases and their tests exist once.
//   nmu(x, weight, clip)                                       as npu_kernels.functional.nmu
//   set_backwards(npu_backward, nmu_backward)
//       the general backwards, for gradients that are not plain or will be differentiated again.
//
// Unlike ops.cpp this file knows torch's C++ classes, which change with its releases: it serves the torch and the
// Python that it was compiled with, and npu_kernels/backends/direct.py loads it for no other.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <array>
#include <limits>
#include <optional>
#include <type_traits>

#include "core/api.h"
#include "threads.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

PyObject *general_npu_backward = nullptr, *general_nmu_backward = nullptr;  // owned for the life of the process

// Nothing that could have to see the call: modes, transforms, autocast, a tracer, the search for anomalies.
bool nothing_watches() {
  return !c10::impl::TorchDispatchModeTLS::any_modes_set() && at::impl::PythonTorchFunctionTLS::stack_len() == 0 &&
         c10::impl::tls_local_dispatch_key_set().included_ == c10::default_included_set &&
         !at::autocast::is_autocast_enabled(at::kCPU) && !torch::autograd::AnomalyMode::is_enabled() &&
         !torch::jit::tracer::isTracing();
}

// A dense CPU tensor of that dtype, with nothing wrapped around it and no tangent.
bool plain(const Tensor& t, at::ScalarType dtype) {
  static const c10::DispatchKeySet keys = at::empty({0}, at::device(at::kCPU)).key_set();
  return t.defined() && t.key_set() == keys && t.scalar_type() == dtype && !t._fw_grad(0).defined();
}

struct Sizes {
  int64_t models, rows, in, out;
  bool shared_x;
};

// Whether x and a weight fit together, and the sizes of the call.
bool fit(const Tensor& x, const Tensor& weight, Sizes& n) {
  const auto rows = x.sizes(), shape = weight.sizes();
  const size_t dims = shape.size();
  if ((dims != 2 && dims != 3) || rows.empty() || x.numel() == 0 || weight.numel() == 0) return false;
  n.models = dims == 3 ? shape[0] : 1;
  n.out = shape[dims - 2];
  n.in = shape[dims - 1];
  n.shared_x = dims == 3 && rows.size() == 2;
  if (rows.back() != n.in || (dims == 3 && !n.shared_x && (rows.size() < 3 || rows[0] != n.models))) return false;
  n.rows = x.numel() / n.in / (n.shared_x ? 1 : n.models);
  return true;
}

// Whether the other operands of an NPU belong to its first weight.
bool belong(const Tensor& weight_im, const Tensor& gate, const Tensor& weight_re, const Sizes& n) {
  if (weight_im.defined() && weight_im.sizes() != weight_re.sizes()) return false;
  if (!gate.defined()) return true;
  const auto gates = gate.sizes();
  return gates.size() == size_t(weight_re.dim() - 1) && gates.back() == n.in &&
         (gates.size() == 1 || gates[0] == n.models);
}

Tensor empty_result(const Tensor& x, const Sizes& n) {
  c10::SmallVector<int64_t, 5> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = n.out;
  if (n.shared_x) shape.insert(shape.begin(), n.models);
  return at::empty(shape, x.options());
}

npu::Parallel threads_for(const Sizes& n) { return npu::torch_threads(n.models, n.rows, n.in, n.out); }

// Gradients of x and of parameters, uninitialised where `needs` has their bit. A shared x gets one gradient per model,
// which add_models adds up.
variable_list empty_gradients(const variable_list& inputs, const Sizes& n, int64_t needs) {
  variable_list grads(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if (needs >> i & 1) grads[i] = at::empty(inputs[i].sizes(), inputs[0].options());
  if (needs & 1 && n.shared_x && n.models != 1) grads[0] = at::empty({n.models, n.rows, n.in}, inputs[0].options());
  return grads;
}
void add_models(variable_list& grads, const Sizes& n) {
  if (grads[0].defined() && n.shared_x && n.models != 1) grads[0] = grads[0].sum(0);
}

// Which of the first inputs need a gradient, one bit each; an absent tensor has no edge.
int64_t needed(const AutogradContext* ctx, const variable_list& inputs, size_t count) {
  int64_t needs = 0;
  for (size_t i = 0, edge = 0; i < count; ++i)
    if (inputs[i].defined() && ctx->needs_input_grad(edge++)) needs |= int64_t(1) << i;
  return needs;
}

// Whether a backward may call the kernels.
bool direct_backward(const Tensor& grad_y, const variable_list& saved) {
  const at::ScalarType dtype = saved[0].scalar_type();
  if (at::GradMode::is_enabled() || !nothing_watches() || !plain(grad_y, dtype)) return false;
  for (const Tensor& t : saved)
    if (t.defined() && !plain(t, dtype)) return false;
  return true;
}

// A general backward in Python: it may be under a transform, or have to build a graph.
template <typename... Arguments>
variable_list call_general(PyObject* backward, size_t count, const Arguments&... arguments) {
  const py::gil_scoped_acquire gil;
  const auto cast = [](const auto& value) -> py::object {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Tensor>)
      return value.defined() ? py::cast(value) : py::object(py::none());
    else return py::cast(value);
  };
  const py::tuple found = py::handle(backward)(cast(arguments)...);
  variable_list grads(count);
  for (size_t i = 0; i < count; ++i)
    if (!found[i].is_none()) grads[i] = found[i].template cast<Tensor>();
  return grads;
}

bool needs_grad(const Tensor& t) { return t.defined() && t.requires_grad(); }

// ---- NPU ------------------------------------------------------------------------------------------------------------

// Operands as the core reads them; the references keep contiguous copies alive.
struct Operands {
  Tensor x, weight_re, weight_im, gate;

  Operands(const Tensor& x, const Tensor& weight_re, const Tensor& weight_im, const Tensor& gate)
      : x(x.contiguous()),
        weight_re(weight_re.contiguous()),
        weight_im(weight_im.defined() ? weight_im.contiguous() : weight_im),
        gate(gate.defined() ? gate.contiguous() : gate) {}

  template <typename T>
  npu::NpuInputs<T> inputs(const Sizes& n, double eps) const {
    return {n.models,
            n.rows,
            n.in,
            n.out,
            x.const_data_ptr<T>(),
            n.shared_x,
            weight_re.const_data_ptr<T>(),
            weight_im.defined() ? weight_im.const_data_ptr<T>() : nullptr,
            gate.defined() ? gate.const_data_ptr<T>() : nullptr,
            T(eps)};
  }
};

template <typename F>
void by_dtype(at::ScalarType dtype, F&& f) {
  dtype == at::kFloat ? f(float{}) : f(double{});
}

// y, and s where it is wanted.
std::array<Tensor, 2> npu_forward(const Tensor& x, const Tensor& weight_re, const Tensor& weight_im, const Tensor& gate,
                                  double eps, const Sizes& n, bool save_sin) {
  const Operands operands(x, weight_re, weight_im, gate);
  std::array<Tensor, 2> result{empty_result(x, n), save_sin ? empty_result(x, n) : Tensor()};
  by_dtype(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    npu::kernels<T>().npu_forward({operands.inputs<T>(n, eps), result[0].mutable_data_ptr<T>(),
                                   save_sin ? result[1].mutable_data_ptr<T>() : nullptr},
                                  threads_for(n));
  });
  return result;
}

variable_list npu_backward(const Tensor& grad_y, const variable_list& saved, double eps, bool straight_through,
                           int64_t needs) {
  Sizes n;
  fit(saved[0], saved[1], n);
  const Operands operands(saved[0], saved[1], saved[2], saved[3]);
  const Tensor upstream = grad_y.contiguous(), y = saved[4].contiguous(), s = saved[5].contiguous();
  variable_list grads = empty_gradients({saved[0], saved[1], saved[2], saved[3]}, n, needs);
  by_dtype(y.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto out = [&](int i) { return grads[i].defined() ? grads[i].mutable_data_ptr<T>() : nullptr; };
    npu::kernels<T>().npu_backward({operands.inputs<T>(n, eps), upstream.const_data_ptr<T>(), y.const_data_ptr<T>(),
                                    s.const_data_ptr<T>(), straight_through, out(0), out(1), out(2), out(3)},
                                   threads_for(n));
  });
  add_models(grads, n);
  return grads;
}

struct NPUDirect : torch::autograd::Function<NPUDirect> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight_re,
                        const std::optional<Tensor>& weight_im, const std::optional<Tensor>& gate, double eps,
                        bool straight_through, const Sizes& n) {
    const Tensor im = weight_im.value_or(Tensor()), g = gate.value_or(Tensor());
    auto [y, s] = npu_forward(x, weight_re, im, g, eps, n, true);
    ctx->save_for_backward({x, weight_re, im, g, y, s});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["straight_through"] = straight_through;
    ctx->set_materialize_grads(false);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    constexpr size_t kArguments = 7;  // of forward; those after the tensors have no gradient
    const Tensor& grad_y = grad_outputs[0];
    if (!grad_y.defined()) return variable_list(kArguments);
    const variable_list saved = ctx->get_saved_variables();
    const int64_t needs = needed(ctx, saved, 4);
    const double eps = ctx->saved_data["eps"].toDouble();
    const bool straight_through = ctx->saved_data["straight_through"].toBool();
    variable_list grads = direct_backward(grad_y, saved)
                              ? npu_backward(grad_y, saved, eps, straight_through, needs)
                              : call_general(general_npu_backward, 4, grad_y, saved[0], saved[1], saved[2], saved[3],
                                             saved[4], saved[5], eps, straight_through, needs);
    grads.resize(kArguments);
    return grads;
  }
};

// ---- NMU ------------------------------------------------------------------------------------------------------------

Tensor nmu_forward(const Tensor& x, const Tensor& weight, const Sizes& n) {
  const Tensor inputs = x.contiguous(), weights = weight.contiguous();
  Tensor y = empty_result(x, n);
  by_dtype(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    npu::kernels<T>().nmu_forward(
        {{n.models, n.rows, n.in, n.out, inputs.const_data_ptr<T>(), n.shared_x, weights.const_data_ptr<T>()},
         y.mutable_data_ptr<T>()},
        threads_for(n));
  });
  return y;
}

variable_list nmu_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, int64_t needs) {
  Sizes n;
  fit(x, weight, n);
  const Tensor upstream = grad_y.contiguous(), inputs = x.contiguous(), weights = weight.contiguous();
  variable_list grads = empty_gradients({x, weight}, n, needs);
  by_dtype(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto out = [&](int i) { return grads[i].defined() ? grads[i].mutable_data_ptr<T>() : nullptr; };
    npu::kernels<T>().nmu_backward(
        {{n.models, n.rows, n.in, n.out, inputs.const_data_ptr<T>(), n.shared_x, weights.const_data_ptr<T>()},
         upstream.const_data_ptr<T>(),
         out(0),
         out(1)},
        threads_for(n));
  });
  add_models(grads, n);
  return grads;
}

struct NMUDirect : torch::autograd::Function<NMUDirect> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Sizes& n) {
    ctx->save_for_backward({x, weight});
    ctx->set_materialize_grads(false);
    return nmu_forward(x, weight, n);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    constexpr size_t kArguments = 3;
    const Tensor& grad_y = grad_outputs[0];
    if (!grad_y.defined()) return variable_list(kArguments);
    const variable_list saved = ctx->get_saved_variables();
    const int64_t needs = needed(ctx, saved, 2);
    variable_list grads = direct_backward(grad_y, saved)
                              ? nmu_backward(grad_y, saved[0], saved[1], needs)
                              : call_general(general_nmu_backward, 2, grad_y, saved[0], saved[1], needs);
    grads.resize(kArguments);
    return grads;
  }
};

// ---- from Python ----------------------------------------------------------------------------------------------------

bool real(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kDouble; }

// None is an undefined tensor; false: not a plain tensor of that dtype.
bool unpack(PyObject* object, at::ScalarType dtype, Tensor& tensor) {
  if (object == Py_None) return true;
  if (!THPVariable_CheckExact(object)) return false;
  tensor = THPVariable_Unpack(object);
  return plain(tensor, dtype);
}

// None is the machine's epsilon; false: not a number that the dtype can add.
bool unpack_eps(PyObject* object, at::ScalarType dtype, double& eps) {
  const auto unpack = [&](auto zero) {
    using Limits = std::numeric_limits<decltype(zero)>;
    if (object == Py_None) {
      eps = Limits::epsilon();
      return true;
    }
    if (!PyFloat_CheckExact(object)) return false;
    eps = PyFloat_AS_DOUBLE(object);
    return eps >= Limits::min() && eps <= Limits::max();
  };
  return dtype == at::kFloat ? unpack(float{}) : unpack(double{});
}

bool is(PyObject* object, const char* text) {
  return PyUnicode_CheckExact(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

PyObject* npu(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Tensor x, weight_re, weight_im, gate;
  if (count != 6 || !THPVariable_CheckExact(args[0]) || args[1] == Py_None) Py_RETURN_NOTIMPLEMENTED;
  const at::ScalarType dtype = THPVariable_Unpack(args[0]).scalar_type();
  double eps;
  const bool straight_through = is(args[5], "straight_through");
  Sizes n;
  if (!real(dtype) || !nothing_watches() || !unpack(args[0], dtype, x) || !unpack(args[1], dtype, weight_re) ||
      !unpack(args[2], dtype, weight_im) || !unpack(args[3], dtype, gate) || !unpack_eps(args[4], dtype, eps) ||
      !(straight_through || is(args[5], "clip")) || !fit(x, weight_re, n) || !belong(weight_im, gate, weight_re, n))
    Py_RETURN_NOTIMPLEMENTED;
  Tensor y;
  {
    const pybind11::gil_scoped_release without_gil;
    const auto optional = [](const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; };
    if (at::GradMode::is_enabled() &&
        (needs_grad(weight_re) || needs_grad(x) || needs_grad(weight_im) || needs_grad(gate)))
      y = NPUDirect::apply(x, weight_re, optional(weight_im), optional(gate), eps, straight_through, n);
    else y = npu_forward(x, weight_re, weight_im, gate, eps, n, false)[0];
  }
  return THPVariable_Wrap(std::move(y));
  END_HANDLE_TH_ERRORS
}

PyObject* nmu(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Tensor x, weight;
  if (count != 3 || !THPVariable_CheckExact(args[0]) || args[1] == Py_None) Py_RETURN_NOTIMPLEMENTED;
  const at::ScalarType dtype = THPVariable_Unpack(args[0]).scalar_type();
  Sizes n;
  if (!real(dtype) || !nothing_watches() || !unpack(args[0], dtype, x) || !unpack(args[1], dtype, weight) ||
      !fit(x, weight, n))
    Py_RETURN_NOTIMPLEMENTED;
  const bool clip = args[2] == Py_True;
  Tensor y;
  {
    const pybind11::gil_scoped_release without_gil;
    if (clip) weight = at::clamp(weight, 0, 1);
    y = at::GradMode::is_enabled() && (needs_grad(weight) || needs_grad(x)) ? NMUDirect::apply(x, weight, n)
                                                                            : nmu_forward(x, weight, n);
  }
  return THPVariable_Wrap(std::move(y));
  END_HANDLE_TH_ERRORS
}

PyObject* set_backwards(PyObject*, PyObject* const* args, Py_ssize_t) {
  general_npu_backward = Py_NewRef(args[0]);
  general_nmu_backward = Py_NewRef(args[1]);
  Py_RETURN_NONE;
}

template <typename F>
PyCFunction fast(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}
PyMethodDef methods[] = {
    {"npu", fast(npu), METH_FASTCALL, nullptr},
    {"nmu", fast(nmu), METH_FASTCALL, nullptr},
    {"set_backwards", fast(set_backwards), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "direct", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_direct() { return PyModule_Create(&module); }
