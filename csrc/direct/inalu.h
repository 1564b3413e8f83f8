// The iNALU's function and autograd node.
#pragma once

#include <array>

#include "sizes.h"

namespace npu_direct {

constexpr int kInaluInputs = 6;  // x, weight_add, mask_add, weight_mul, mask_mul, gate_weight

struct InaluOptions {
  double eps, omega;
};

template <typename T>
npu::InaluInputs<T> inalu_inputs(const variable_list& inputs, const Sizes& n, const InaluOptions& options) {
  const auto data = [&](int i) { return inputs[i].const_data_ptr<T>(); };
  return {n.models, n.rows,  n.in,    n.out,   data(0),        n.shared_x,      data(1),
          data(2),  data(3), data(4), data(5), T(options.eps), T(options.omega)};
}

inline variable_list contiguous(const variable_list& tensors) {
  variable_list found;
  for (const Tensor& tensor : tensors) found.push_back(tensor.contiguous());
  return found;
}

// y; and h, a, t, the flags and the weights' parts where they are wanted.
inline std::array<Tensor, 6> inalu_forward(const variable_list& given, const InaluOptions& options, const Sizes& n,
                                           bool save) {
  const variable_list inputs = contiguous(given);
  std::array<Tensor, 6> result{empty_result(inputs[0], n)};
  for (int i = 1; i < 5 && save; ++i)
    result[i] = at::empty(result[0].sizes(), result[0].options().dtype(i == 4 ? at::kInt : result[0].scalar_type()));
  if (save) result[5] = at::empty({4, inputs[1].numel()}, inputs[1].options());
  by_dtype(inputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto out = [&](int i) { return result[i].defined() ? result[i].mutable_data_ptr<T>() : nullptr; };
    npu::kernels<T>().inalu_forward({inalu_inputs<T>(inputs, n, options), out(0), out(1), out(2), out(3),
                                     save ? result[4].mutable_data_ptr<int32_t>() : nullptr, out(5)},
                                    threads_for(n));
  });
  return result;
}

// saved: the inputs, h, a, t, flags, parts.
inline variable_list inalu_backward(const Tensor& grad_y, const variable_list& given, const InaluOptions& options,
                                    int64_t needs) {
  const variable_list saved = contiguous(given);
  Sizes n;
  fit(saved[0], saved[1], n);
  const Tensor upstream = grad_y.contiguous();
  variable_list grads = empty_gradients({saved.begin(), saved.begin() + kInaluInputs}, n, needs);
  by_dtype(saved[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto in = [&](int i) { return saved[kInaluInputs + i].const_data_ptr<T>(); };
    const auto out = [&](int i) { return grads[i].defined() ? grads[i].mutable_data_ptr<T>() : nullptr; };
    npu::kernels<T>().inalu_backward(
        {inalu_inputs<T>(saved, n, options), upstream.const_data_ptr<T>(), in(0), in(1), in(2),
         saved[kInaluInputs + 3].const_data_ptr<int32_t>(), in(4), out(0), out(1), out(2), out(3), out(4), out(5)},
        threads_for(n));
  });
  add_models(grads, n);
  return grads;
}

struct INALUDirect : Node<INALUDirect> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight_add, const Tensor& mask_add,
                        const Tensor& weight_mul, const Tensor& mask_mul, const Tensor& gate_weight,
                        const InaluOptions& options, const Sizes& n) {
    variable_list saved{x, weight_add, mask_add, weight_mul, mask_mul, gate_weight};
    const std::array<Tensor, 6> result = inalu_forward(saved, options, n, true);
    saved.insert(saved.end(), result.begin() + 1, result.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["eps"] = options.eps;
    ctx->saved_data["omega"] = options.omega;
    ctx->set_materialize_grads(false);
    return result[0];
  }

  static variable_list gradients(AutogradContext* ctx, const variable_list& grad_outputs) {
    constexpr size_t kArguments = kInaluInputs + 2;  // of forward; those after the tensors have no gradient
    const Tensor& grad_y = grad_outputs[0];
    if (!grad_y.defined()) return variable_list(kArguments);
    const variable_list s = ctx->get_saved_variables();
    const int64_t needs = needed(ctx, s, kInaluInputs);
    const InaluOptions options{ctx->saved_data["eps"].toDouble(), ctx->saved_data["omega"].toDouble()};
    constexpr int kFlags = kInaluInputs + 3;
    variable_list reals = s;
    reals.erase(reals.begin() + kFlags);
    const bool direct = direct_backward(grad_y, reals) && plain(s[kFlags], at::kInt);
    variable_list grads = direct ? inalu_backward(grad_y, s, options, needs)
                                 : call_general("inalu", kInaluInputs, grad_y, s[0], s[1], s[2], s[3], s[4], s[5], s[6],
                                                s[7], s[8], s[9], options.eps, options.omega, needs);
    grads.resize(kArguments);
    return grads;
  }
};

inline PyObject* inalu(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != kInaluInputs + 2 || !THPVariable_CheckExact(args[0])) Py_RETURN_NOTIMPLEMENTED;
  const at::ScalarType dtype = THPVariable_Unpack(args[0]).scalar_type();
  variable_list in(kInaluInputs);
  if (!real(dtype) || !nothing_watches()) Py_RETURN_NOTIMPLEMENTED;
  bool differentiable = false;
  for (int i = 0; i < kInaluInputs; ++i) {
    if (args[i] == Py_None || !unpack(args[i], dtype, in[i]) || (i > 1 && in[i].sizes() != in[1].sizes()))
      Py_RETURN_NOTIMPLEMENTED;
    differentiable = differentiable || needs_grad(in[i]);
  }
  InaluOptions options;
  Sizes n;
  // The general backward takes flat rows.
  if (args[kInaluInputs] == Py_None || !unpack_eps(args[kInaluInputs], dtype, options.eps) ||
      args[kInaluInputs + 1] == Py_None || !unpack_eps(args[kInaluInputs + 1], dtype, options.omega) ||
      !fit(in[0], in[1], n) || (in[0].dim() != in[1].dim() && !n.shared_x))
    Py_RETURN_NOTIMPLEMENTED;
  Tensor y;
  {
    const pybind11::gil_scoped_release without_gil;
    y = at::GradMode::is_enabled() && differentiable
            ? INALUDirect::apply(in[0], in[1], in[2], in[3], in[4], in[5], options, n)
            : inalu_forward(in, options, n, false)[0];
  }
  return THPVariable_Wrap(std::move(y));
}

}  // namespace npu_direct
