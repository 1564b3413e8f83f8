// What may take the fast path, and what its functions share.
#pragma once

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "layers.h"
#include "operators/out_of_memory.h"
#include "platform/huge_pages.h"
#include "platform/threads.h"

// Its header includes every operator of torch, which would double the compile time.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
}

namespace npu_fast_path {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Whether nothing needs to see the call: no mode, transform, autocast, tracer or anomaly mode. Dispatch modes,
// transforms and the tracer include a dispatch key.
inline bool nothing_watches() {
  // torch.inference_mode() removes the dispatch key that tracks views and changes in place. Only Adam's step makes such
  // changes here.
  constexpr c10::DispatchKeySet kInference = c10::default_included_set.remove(c10::DispatchKey::ADInplaceOrView);
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return at::impl::PythonTorchFunctionTLS::stack_len() == 0 &&
         (included == c10::default_included_set || (included == kInference && c10::InferenceMode::is_enabled())) &&
         !at::autocast::is_autocast_enabled(at::kCPU) && !torch::autograd::AnomalyMode::is_enabled();
}

// Whether what is saved for a backward goes through somebody's hooks. A checkpoint pairs it by its order with what a
// second forward saves. That one may be watched, so that both must go the general way.
inline bool hooks_see_saved() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

inline c10::DispatchKeySet keys_of_cpu_tensors(bool inference) {
  const c10::InferenceMode mode(inference);
  return at::empty({0}, at::device(at::kCPU)).key_set();
}

// A result that a kernel will write.
inline Tensor uninitialised(at::IntArrayRef shape, const at::TensorOptions& options) {
  Tensor result = at::empty(shape, options);
  const size_t bytes = size_t(result.numel()) * result.itemsize();
  if (C10_UNLIKELY(bytes >= npu::kMinForHugePages)) npu::want_huge_pages(result.mutable_data_ptr(), bytes);
  return result;
}

// Whether a tensor's storage, which somebody may have freed or made smaller, has memory for it.
inline bool has_memory(const Tensor& t) {
  int64_t count = t.numel();
  if (count == 0) return true;
  if (C10_UNLIKELY(!t.is_contiguous())) {
    count = 1;
    for (int64_t d = 0; d < t.dim(); ++d) count += (t.size(d) - 1) * t.stride(d);
  }
  return size_t(t.storage_offset() + count) * t.itemsize() <= t.storage().nbytes();
}

// A dense CPU tensor of that dtype, with nothing wrapped around it and no tangent. An inference tensor is one too:
// where it would have to be saved for a backward, autograd refuses it as it does everywhere. Asked where nothing
// watches.
inline bool plain(const Tensor& t, at::ScalarType dtype) {
  static const c10::DispatchKeySet normal = keys_of_cpu_tensors(false), inference = keys_of_cpu_tensors(true);
  return t.defined() && (t.key_set() == normal || t.key_set() == inference) && t.scalar_type() == dtype &&
         !t._fw_grad(0).defined() && has_memory(t);
}

// Which of the first inputs need a gradient, one bit each; an absent tensor has no edge.
inline int64_t needed(const AutogradContext* ctx, const variable_list& inputs, size_t count) {
  int64_t needs = 0;
  for (size_t i = 0, edge = 0; i < count; ++i)
    if (inputs[i].defined() && ctx->needs_input_grad(edge++)) needs |= int64_t(1) << i;
  return needs;
}

// Whether a backward may call the kernels.
inline bool fast_backward(const Tensor& grad_y, const variable_list& saved) {
  const at::ScalarType dtype = saved[0].scalar_type();
  if (at::GradMode::is_enabled() || !nothing_watches() || !plain(grad_y, dtype)) return false;
  for (const Tensor& t : saved)
    if (t.defined() && !plain(t, dtype)) return false;
  return true;
}

// A function with a backward: Derived has `forward`, and `gradients` of what torch gives its backward.
template <typename Derived>
struct Node : torch::autograd::Function<Derived> {
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return npu::naming_memory([&] { return Derived::gradients(ctx, grads); });
  }
};

// The general backwards in Python by name, owned for the life of the process; set under the GIL, read under it.
inline std::map<std::string, PyObject*, std::less<>> general;

// The gradients that one of them gives.
inline variable_list general_gradients(const char* name, size_t count, const py::tuple& arguments) {
  const py::tuple found = py::handle(general.at(name))(*arguments);
  variable_list grads(count);
  for (size_t i = 0; i < count; ++i)
    if (!found[i].is_none()) grads[i] = found[i].cast<Tensor>();
  return grads;
}

// A general backward in Python: it may be under a transform, or have to build a graph.
template <typename... Arguments>
variable_list call_general(const char* name, size_t count, const Arguments&... arguments) {
  const py::gil_scoped_acquire gil;
  const auto cast = [](const auto& value) -> py::object {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Tensor>)
      return value.defined() ? py::cast(value) : py::object(py::none());
    else return py::cast(value);
  };
  return general_gradients(name, count, py::make_tuple(cast(arguments)...));
}

inline bool needs_grad(const Tensor& t) { return t.defined() && t.requires_grad(); }

template <typename F>
void by_dtype(at::ScalarType dtype, F&& f) {
  dtype == at::kFloat ? f(float{}) : f(double{});
}

inline bool real(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kDouble; }

// None is an undefined tensor; false: not a plain tensor of that dtype.
inline bool unpack(PyObject* object, at::ScalarType dtype, Tensor& tensor) {
  if (object == Py_None) return true;
  if (!THPVariable_CheckExact(object)) return false;
  tensor = THPVariable_Unpack(object);
  return plain(tensor, dtype);
}

// None is the machine's epsilon; false: not a number that the dtype can add.
inline bool unpack_eps(PyObject* object, at::ScalarType dtype, double& eps) {
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

inline bool is(PyObject* object, const char* text) {
  return PyUnicode_CheckExact(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

}  // namespace npu_fast_path
