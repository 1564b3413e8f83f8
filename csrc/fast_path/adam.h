// A step of Adam over all of an optimizer's parameters.
#pragma once

#include <vector>

#include "common.h"

namespace npu_fast_path {

// Read from Python's objects; nothing is changed before all of it is known to be plain.
class AdamUpdate {
 public:
  // torch.optim.Adam's param_groups and state; false: something is not plain, or a state has not begun yet.
  bool read(PyObject* groups, PyObject* states) {
    if (!PyList_CheckExact(groups) || !PyDict_Check(states)) return false;
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(groups); ++n)
      if (!read_group(PyList_GET_ITEM(groups, n), states)) return false;
    return true;
  }

  void run() const {
    for (const One& one : parameters_) {
      float* number = one.number.mutable_data_ptr<float>();
      *number += 1;
      by_dtype(one.parameter.scalar_type(), [&](auto zero) {
        using T = decltype(zero);
        const npu::AdamStep<T> step{one.options,
                                    one.parameter.numel(),
                                    one.parameter.mutable_data_ptr<T>(),
                                    one.grad.const_data_ptr<T>(),
                                    one.exp_avg.mutable_data_ptr<T>(),
                                    one.exp_avg_sq.mutable_data_ptr<T>(),
                                    double(*number)};
        npu::kernels<T>().adam(step, npu::torch_threads(8.0 * double(step.count)));
      });
      for (const Tensor* changed : {&one.parameter, &one.exp_avg, &one.exp_avg_sq, &one.number})
        changed->unsafeGetTensorImpl()->bump_version();
    }
  }

 private:
  struct One {
    npu::AdamOptions options;
    Tensor parameter, grad, exp_avg, exp_avg_sq, number;
  };
  std::vector<One> parameters_;

  static bool number(PyObject* dict, const char* name, double& value) {
    PyObject* found = PyDict_GetItemString(dict, name);
    if (found == nullptr || !(PyFloat_CheckExact(found) || PyLong_CheckExact(found))) return false;
    value = PyFloat_AsDouble(found);
    return value != -1 || PyErr_Occurred() == nullptr;  // an integer may be beyond the floats
  }
  // A missing flag is false; any other value than True or False is not plain.
  static bool flag(PyObject* dict, const char* name, bool& value) {
    PyObject* found = PyDict_GetItemString(dict, name);
    value = found == Py_True;
    return found == nullptr || found == Py_True || found == Py_False;
  }

  // Outside of inference mode torch refuses to change an inference tensor; its own step says so.
  static bool changeable(const Tensor& t) {
    return t.is_contiguous() && (!t.is_inference() || c10::InferenceMode::is_enabled());
  }

  static bool tensor(PyObject* dict, const char* name, at::ScalarType dtype, Tensor& value) {
    PyObject* found = PyDict_GetItemString(dict, name);
    return found != nullptr && found != Py_None && unpack(found, dtype, value) && changeable(value);
  }

  bool read_group(PyObject* group, PyObject* states) {
    npu::AdamOptions options{};
    PyObject* betas = PyDict_Check(group) ? PyDict_GetItemString(group, "betas") : nullptr;
    PyObject* parameters = betas != nullptr ? PyDict_GetItemString(group, "params") : nullptr;
    if (parameters == nullptr || !PyList_CheckExact(parameters) || !PyTuple_CheckExact(betas) ||
        PyTuple_GET_SIZE(betas) != 2 || !number(group, "lr", options.lr) || !number(group, "eps", options.eps) ||
        !number(group, "weight_decay", options.weight_decay) || !flag(group, "maximize", options.maximize) ||
        !flag(group, "decoupled_weight_decay", options.decoupled))
      return false;
    for (const char* name : {"amsgrad", "capturable", "differentiable"}) {
      bool set;
      if (!flag(group, name, set) || set) return false;
    }
    for (int n = 0; n < 2; ++n) {
      PyObject* beta = PyTuple_GET_ITEM(betas, n);
      if (!PyFloat_CheckExact(beta)) return false;
      (n == 0 ? options.beta1 : options.beta2) = PyFloat_AS_DOUBLE(beta);
    }
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(parameters); ++n)
      if (!read_parameter(PyList_GET_ITEM(parameters, n), states, options)) return false;
    return true;
  }

  bool read_parameter(PyObject* object, PyObject* states, const npu::AdamOptions& options) {
    if (!THPVariable_Check(object)) return false;
    const Tensor& parameter = THPVariable_Unpack(object);  // an nn.Parameter is a subclass, and plain all the same
    const Tensor& grad = parameter.grad();
    if (!grad.defined()) return true;
    const at::ScalarType dtype = parameter.scalar_type();
    PyObject* state = PyDict_GetItemWithError(states, object);
    One one{options, parameter, grad, {}, {}, {}};
    if (state == nullptr || !PyDict_CheckExact(state) || !real(dtype) || !plain(parameter, dtype) ||
        !plain(grad, dtype) || !changeable(parameter) || grad.requires_grad() || grad.sizes() != parameter.sizes() ||
        !tensor(state, "exp_avg", dtype, one.exp_avg) || !tensor(state, "exp_avg_sq", dtype, one.exp_avg_sq) ||
        !tensor(state, "step", at::kFloat, one.number) || one.exp_avg.sizes() != parameter.sizes() ||
        one.exp_avg_sq.sizes() != parameter.sizes() || one.number.numel() != 1)
      return false;
    one.grad = grad.contiguous();  // allocated before the step begins, so that a step is complete or does nothing
    parameters_.push_back(std::move(one));
    return true;
  }
};

inline PyObject* adam(PyObject*, PyObject* const* args, Py_ssize_t count) {
  AdamUpdate update;
  if (count != 2 || !nothing_watches() || !update.read(args[0], args[1])) {
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NOTIMPLEMENTED;
  }
  const pybind11::gil_scoped_release without_gil;
  update.run();
  Py_RETURN_NONE;
}

}  // namespace npu_fast_path
