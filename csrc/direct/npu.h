// The NPU's function and autograd node.
#pragma once

#include <array>

#include "sizes.h"

namespace npu_direct {

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
            T(eps),
            npu::float_terms()};
  }
};

// y, and s where it is wanted.
inline std::array<Tensor, 2> npu_forward(const Tensor& x, const Tensor& weight_re, const Tensor& weight_im,
                                         const Tensor& gate, double eps, const Sizes& n, bool save_sin) {
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

inline variable_list npu_backward(const Tensor& grad_y, const variable_list& saved, double eps, bool straight_through,
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

struct NPUDirect : Node<NPUDirect> {
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

  static variable_list gradients(AutogradContext* ctx, const variable_list& grad_outputs) {
    constexpr size_t kArguments = 7;  // of forward; those after the tensors have no gradient
    const Tensor& grad_y = grad_outputs[0];
    if (!grad_y.defined()) return variable_list(kArguments);
    const variable_list saved = ctx->get_saved_variables();
    const int64_t needs = needed(ctx, saved, 4);
    const double eps = ctx->saved_data["eps"].toDouble();
    const bool straight_through = ctx->saved_data["straight_through"].toBool();
    variable_list grads = direct_backward(grad_y, saved)
                              ? npu_backward(grad_y, saved, eps, straight_through, needs)
                              : call_general("npu", 4, grad_y, saved[0], saved[1], saved[2], saved[3], saved[4],
                                             saved[5], eps, straight_through, needs);
    grads.resize(kArguments);
    return grads;
  }
};

inline PyObject* npu(PyObject*, PyObject* const* args, Py_ssize_t count) {
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
}

}  // namespace npu_direct
