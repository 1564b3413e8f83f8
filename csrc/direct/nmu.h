// The NMU's function and autograd node.
#pragma once

#include <ATen/ops/clamp.h>

#include "sizes.h"

namespace npu_direct {

inline Tensor nmu_forward(const Tensor& x, const Tensor& weight, const Sizes& n) {
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

inline variable_list nmu_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, int64_t needs) {
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
                              : call_general(general.nmu, 2, grad_y, saved[0], saved[1], needs);
    grads.resize(kArguments);
    return grads;
  }
};

inline PyObject* nmu(PyObject*, PyObject* const* args, Py_ssize_t count) {
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

}  // namespace npu_direct
