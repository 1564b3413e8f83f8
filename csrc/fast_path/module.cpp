// The fast path from Python to the core, for plain CPU tensors: one call does what the module's checks, an
// autograd.Function and a registered operator do otherwise, for a fifth of their cost, which is most of a small layer's
// time. A Python module `fast_path` with
//
//   npu(x, weight_re, weight_im, gate, eps, gate_gradient)      as npu_kernels.functional.npu
//       y, with its derivative, or NotImplemented: the caller uses the operator. It is for everything that is not
//       plain (subclasses, transforms, modes, autocast, tangents, other devices and dtypes, empty tensors) and for
//       every error, so that messages, special cases and their tests exist once.
//   and likewise each layer of layers.h: x, its weights, its options on the fast path, in the order of its record
//   mse(y, target, models)                                     as npu_kernels.training.mse_loss
//   adam(param_groups, state)                                  a step of npu_kernels.optim.Adam: None
//   ode(u0, weight_re, weight_im, gate, weight, tableau, steps, dt, eps, gate_gradient, clip, memory, derivatives)
//       as npu_kernels.ode.integrate: (trajectory, derivatives or None, whether all is finite), or NotImplemented
//   training_plan(number, parameters, sizes), training_step(plan, state, x, y, weight, schedules)
//       a step of npu_kernels.training.make_step: the loss, or NotImplemented
//   set_backward(name, function)
//       the general backward of one of these, for gradients that are not plain or will be differentiated again.
//
// Loaded, it also tells the registered operators the float32 matmul precision (core/api.h).
//
// Unlike operators/ these files know torch's C++ classes, which change with its releases: they serve the torch and the
// Python that they were compiled with, and npu_kernels/_operators/fast_path.py loads them for no other.
#include "adam.h"
#include "layer.h"
#include "mse.h"
#include "ode.h"
#include "second.h"
#include "train.h"

namespace {

PyObject* set_backward(PyObject*, PyObject* const* args, Py_ssize_t) {
  npu_fast_path::general[PyUnicode_AsUTF8(args[0])] = Py_NewRef(args[1]);
  Py_RETURN_NONE;
}

// What torch or the core throw becomes a Python error.
template <auto function>
PyObject* raising(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  return npu::naming_memory([&] { return function(self, args, count); });
  END_HANDLE_TH_ERRORS
}

template <auto function>
PyCFunction fast() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&raising<function>));
}
std::vector<PyMethodDef> functions() {
  std::vector<PyMethodDef> found;
  npu::each_layer([&](auto layer) {
    using L = decltype(layer);
    found.push_back({L::name, fast<npu_fast_path::Fast<L>::call>(), METH_FASTCALL, nullptr});
  });
  found.push_back({"mse", fast<npu_fast_path::mse>(), METH_FASTCALL, nullptr});
  found.push_back({"adam", fast<npu_fast_path::adam>(), METH_FASTCALL, nullptr});
  found.push_back({"ode", fast<npu_fast_path::ode>(), METH_FASTCALL, nullptr});
  found.push_back({"training_plan", fast<npu_fast_path::training_plan>(), METH_FASTCALL, nullptr});
  found.push_back({"training_step", fast<npu_fast_path::training_step>(), METH_FASTCALL, nullptr});
  found.push_back({"set_backward", fast<set_backward>(), METH_FASTCALL, nullptr});
  found.push_back({nullptr, nullptr, 0, nullptr});
  return found;
}

// torch's set_float32_matmul_precision sets this for all devices; asked without a device, torch refuses where the
// devices' own settings differ.
int read_float_terms() {
  const at::Float32Precision precision =
      at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision == at::Float32Precision::BF16 ? 1 : (precision == at::Float32Precision::TF32 ? 2 : 3);
}

std::vector<PyMethodDef> methods = functions();
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "fast_path", nullptr, -1, methods.data(), nullptr, nullptr, nullptr, nullptr};

}  // namespace

extern "C" void NPU_INTERFACE();  // csrc/platform/threads.cpp

PyMODINIT_FUNC PyInit_fast_path() {
  NPU_INTERFACE();
  npu::read_float_terms_by(read_float_terms);  // for the registered operators too
  return PyModule_Create(&module);
}
