// The mean squared error's function and autograd node.
#pragma once

#include "common.h"

namespace npu_fast_path {

// One loss of everything, or with `models` one of each element of the first dimension; a target without that dimension
// serves all models.
struct Loss {
  bool models, shared_target;

  // Whether the shapes go together; sets `shared_target`.
  bool match_shapes(const Tensor& y, const Tensor& target) {
    const auto values = y.sizes(), targets = target.sizes();
    if (y.numel() == 0 || (models && values.empty())) return false;
    shared_target = models && targets.size() + 1 == values.size();
    return targets == (shared_target ? values.slice(1) : values);
  }
  template <typename T>
  npu::MseInputs<T> inputs(const Tensor& y, const Tensor& target) const {
    const int64_t count = models ? y.size(0) : 1;
    return {count, y.numel() / count, y.const_data_ptr<T>(), target.const_data_ptr<T>(), shared_target};
  }
};

inline npu::TorchThreads threads_for_values(int64_t count) { return npu::torch_threads(double(count)); }

inline Tensor mse_forward(const Tensor& y, const Tensor& target, const Loss& kind) {
  const Tensor values = y.contiguous(), targets = target.contiguous();
  Tensor loss = kind.models ? uninitialised({y.size(0)}, y.options()) : uninitialised({}, y.options());
  by_dtype(y.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    npu::kernels<T>().mse_forward({kind.inputs<T>(values, targets), loss.mutable_data_ptr<T>()},
                                  threads_for_values(y.numel()));
  });
  return loss;
}

inline Tensor mse_backward(const Tensor& grad_loss, const Tensor& y, const Tensor& target, const Loss& kind) {
  const Tensor upstream = grad_loss.contiguous(), values = y.contiguous(), targets = target.contiguous();
  Tensor grad_y = uninitialised(y.sizes(), y.options());
  by_dtype(y.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    npu::kernels<T>().mse_backward(
        {kind.inputs<T>(values, targets), upstream.const_data_ptr<T>(), grad_y.mutable_data_ptr<T>()},
        threads_for_values(y.numel()));
  });
  return grad_y;
}

struct MSEFastPath : Node<MSEFastPath> {
  static Tensor forward(AutogradContext* ctx, const Tensor& y, const Tensor& target, const Loss& kind) {
    ctx->save_for_backward({y, target});
    ctx->saved_data["models"] = kind.models;
    ctx->set_materialize_grads(false);
    return mse_forward(y, target, kind);
  }

  static variable_list gradients(AutogradContext* ctx, const variable_list& grad_outputs) {
    variable_list grads(3);
    const Tensor& grad_loss = grad_outputs[0];
    if (!grad_loss.defined()) return grads;
    const variable_list saved = ctx->get_saved_variables();
    Loss kind{ctx->saved_data["models"].toBool(), false};
    kind.match_shapes(saved[0], saved[1]);
    grads[0] = fast_backward(grad_loss, saved) ? mse_backward(grad_loss, saved[0], saved[1], kind)
                                               : call_general("mse", 1, grad_loss, saved[0], saved[1], kind.models)[0];
    return grads;
  }
};

inline PyObject* mse(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Tensor y, target;
  if (count != 3 || !THPVariable_CheckExact(args[0])) Py_RETURN_NOTIMPLEMENTED;
  const at::ScalarType dtype = THPVariable_Unpack(args[0]).scalar_type();
  Loss kind{args[2] == Py_True, false};
  if (!real(dtype) || !nothing_watches() || !unpack(args[0], dtype, y) || !unpack(args[1], dtype, target) ||
      !target.defined() || target.requires_grad() || !kind.match_shapes(y, target))
    Py_RETURN_NOTIMPLEMENTED;
  const bool differentiable = at::GradMode::is_enabled() && needs_grad(y);
  if (differentiable && hooks_see_saved()) Py_RETURN_NOTIMPLEMENTED;
  Tensor loss;
  {
    const pybind11::gil_scoped_release without_gil;
    loss = differentiable ? MSEFastPath::apply(y, target, kind) : mse_forward(y, target, kind);
  }
  return THPVariable_Wrap(std::move(loss));
}

}  // namespace npu_fast_path
