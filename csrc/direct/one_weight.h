// The functions and autograd nodes of the layers with one weight: NMU and NAU.
#pragma once

#include <ATen/ops/clamp.h>

#include <algorithm>
#include <utility>

#include "sizes.h"

namespace npu_direct {

// What a layer brings: its kernels, their arguments, its general backward, and which calls they take.
struct NMULayer {
  static constexpr const char* name = "nmu";
  static bool takes(const Sizes&, at::ScalarType) { return true; }
  // The kernels take the weight as it is.
  static Tensor prepare(const Tensor& weight, bool& clip) {
    return std::exchange(clip, false) ? at::clamp(weight, 0, 1) : weight;
  }
  template <typename T>
  static npu::NmuInputs<T> inputs(const Sizes& n, const Tensor& x, const Tensor& weight, bool) {
    return {n.models, n.rows, n.in, n.out, x.const_data_ptr<T>(), n.shared_x, weight.const_data_ptr<T>()};
  }
  template <typename T>
  static constexpr auto forward = &npu::Kernels<T>::nmu_forward;
  template <typename T>
  static constexpr auto backward = &npu::Kernels<T>::nmu_backward;
};

struct NAULayer {
  static constexpr const char* name = "nau";
  // Measured: from a million on torch's product is as fast, or faster by up to a quarter. Where the user allows float32
  // products less than full precision, torch's, which the other ways to this layer take, is lowered from 16^3 on: one
  // call has one precision on every way.
  static bool takes(const Sizes& n, at::ScalarType dtype) {
    const int64_t side = std::max(n.in, n.out);
    const double work = double(n.models) * double(n.rows * n.in * n.out);
    if (dtype == at::kFloat && work > 4096 && npu::float_terms() < 3) return false;
    return side <= 16 || (side <= 64 && work < 1e6);
  }
  static Tensor prepare(const Tensor& weight, bool&) { return weight; }
  template <typename T>
  static npu::NauInputs<T> inputs(const Sizes& n, const Tensor& x, const Tensor& weight, bool clip) {
    return {n.models, n.rows, n.in, n.out, x.const_data_ptr<T>(), n.shared_x, weight.const_data_ptr<T>(), clip};
  }
  template <typename T>
  static constexpr auto forward = &npu::Kernels<T>::nau_forward;
  template <typename T>
  static constexpr auto backward = &npu::Kernels<T>::nau_backward;
};

template <typename Layer>
Tensor one_weight_forward(const Tensor& x, const Tensor& weight, bool clip, const Sizes& n) {
  const Tensor inputs = x.contiguous(), weights = weight.contiguous();
  Tensor y = empty_result(x, n);
  by_dtype(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    (npu::kernels<T>().*
     Layer::template forward<T>)({Layer::template inputs<T>(n, inputs, weights, clip), y.mutable_data_ptr<T>()},
                                 threads_for(n));
  });
  return y;
}

template <typename Layer>
variable_list one_weight_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, bool clip,
                                  int64_t needs) {
  Sizes n;
  fit(x, weight, n);
  const Tensor upstream = grad_y.contiguous(), inputs = x.contiguous(), weights = weight.contiguous();
  variable_list grads = empty_gradients({x, weight}, n, needs);
  by_dtype(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto out = [&](int i) { return grads[i].defined() ? grads[i].mutable_data_ptr<T>() : nullptr; };
    (npu::kernels<T>().*Layer::template backward<T>)({Layer::template inputs<T>(n, inputs, weights, clip),
                                                      upstream.const_data_ptr<T>(), out(0), out(1)},
                                                     threads_for(n));
  });
  add_models(grads, n);
  return grads;
}

template <typename Layer>
struct OneWeightDirect : Node<OneWeightDirect<Layer>> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, bool clip, const Sizes& n) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["clip"] = clip;
    ctx->set_materialize_grads(false);
    return one_weight_forward<Layer>(x, weight, clip, n);
  }

  static variable_list gradients(AutogradContext* ctx, const variable_list& grad_outputs) {
    constexpr size_t kArguments = 4;  // of forward; those after the tensors have no gradient
    const Tensor& grad_y = grad_outputs[0];
    if (!grad_y.defined()) return variable_list(kArguments);
    const variable_list saved = ctx->get_saved_variables();
    const int64_t needs = needed(ctx, saved, 2);
    const bool clip = ctx->saved_data["clip"].toBool();
    variable_list grads = direct_backward(grad_y, saved)
                              ? one_weight_backward<Layer>(grad_y, saved[0], saved[1], clip, needs)
                              : call_general(Layer::name, 2, grad_y, saved[0], saved[1], clip, needs);
    grads.resize(kArguments);
    return grads;
  }
};

template <typename Layer>
PyObject* one_weight(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Tensor x, weight;
  if (count != 3 || !THPVariable_CheckExact(args[0]) || args[1] == Py_None) Py_RETURN_NOTIMPLEMENTED;
  const at::ScalarType dtype = THPVariable_Unpack(args[0]).scalar_type();
  Sizes n;
  if (!real(dtype) || !nothing_watches() || !unpack(args[0], dtype, x) || !unpack(args[1], dtype, weight) ||
      !fit(x, weight, n) || !Layer::takes(n, dtype))
    Py_RETURN_NOTIMPLEMENTED;
  bool clip = args[2] == Py_True;
  Tensor y;
  {
    const pybind11::gil_scoped_release without_gil;
    weight = Layer::prepare(weight, clip);
    y = at::GradMode::is_enabled() && (needs_grad(weight) || needs_grad(x))
            ? OneWeightDirect<Layer>::apply(x, weight, clip, n)
            : one_weight_forward<Layer>(x, weight, clip, n);
  }
  return THPVariable_Wrap(std::move(y));
}

}  // namespace npu_direct
