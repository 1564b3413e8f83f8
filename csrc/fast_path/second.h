// The gradients of the Neural Power Unit as a function with a derivative: what a backward with create_graph runs.
#pragma once

#include <array>

#include "layer.h"

namespace npu_fast_path {

struct NpuGradients : Node<NpuGradients> {
  using F = Fast<npu::NpuLayer>;
  static constexpr size_t kOfOperands = 1 + F::kOperands;  // gradients: of grad_y and the operands
  static constexpr size_t kInputs = kOfOperands + 2;       // these, y and s
  enum Along : size_t { kX, kRe, kIm, kGate };             // the operands, whose gradients' gradients are a direction

  struct Call {
    F::Options options;
    int64_t needs;
  };

  // saved: that of the layer's node. Gradients without a bit in `needs` are undefined.
  static variable_list of_layer(const Tensor& grad_y, const variable_list& saved, const F::Options& options,
                                int64_t needs) {
    const auto present = [](const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; };
    variable_list wanted = apply(Call{options, needs}, grad_y, saved[0], saved[1], present(saved[2]), present(saved[3]),
                                 saved[4], saved[5]);
    variable_list grads(F::kOperands);
    for (size_t i = 0, next = 0; i < grads.size(); ++i)
      if (needs >> i & 1) grads[i] = std::move(wanted[next++]);
    return grads;
  }

  // The wanted gradients, one after the other.
  static variable_list forward(AutogradContext* ctx, const Call& call, const Tensor& grad_y, const Tensor& x,
                               const Tensor& weight_re, const std::optional<Tensor>& weight_im,
                               const std::optional<Tensor>& gate, const Tensor& y, const Tensor& s) {
    const variable_list saved{x, weight_re, weight_im.value_or(Tensor()), gate.value_or(Tensor()), y, s};
    variable_list all = F::backward(grad_y, saved, call.options, call.needs), grads;
    for (Tensor& grad : all)
      if (grad.defined()) grads.push_back(std::move(grad));
    ctx->save_for_backward({grad_y, saved[0], saved[1], saved[2], saved[3], y, s});
    ctx->saved_data["eps"] = call.options[0];
    ctx->saved_data["straight_through"] = call.options[1];
    ctx->saved_data["needs"] = call.needs;
    ctx->set_materialize_grads(false);
    return grads;
  }

  static variable_list gradients(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const int64_t computed = ctx->saved_data["needs"].toInt(), needs = needed(ctx, saved, kInputs);
    const double eps = ctx->saved_data["eps"].toDouble();
    const bool straight_through = ctx->saved_data["straight_through"].toDouble() != 0;
    std::array<Tensor, F::kOperands> along;
    bool any = false;
    for (size_t i = 0, next = 0; i < along.size(); ++i) {
      if (computed >> i & 1) along[i] = grad_outputs[next++];
      any = any || along[i].defined();
    }
    variable_list result(1 + kInputs);
    if (!any) return result;
    variable_list grads;
    if (plain_call(saved, along)) {
      grads = compute(saved, along, eps, straight_through, needs);
    } else {
      // These have everything, so that nothing comes through y and s.
      grads = call_general("npu_second", kOfOperands, saved[0], saved[1], saved[2], saved[3], saved[4], saved[5],
                           saved[6], eps, straight_through, computed, along[kX], along[kRe], along[kIm], along[kGate],
                           needs & ((1 << kOfOperands) - 1));
    }
    std::move(grads.begin(), grads.end(), result.begin() + 1);
    return result;
  }

 private:
  static bool plain_call(const variable_list& saved, const std::array<Tensor, F::kOperands>& along) {
    for (const Tensor& t : along)
      if (t.defined() && !plain(t, saved[0].scalar_type())) return false;
    return fast_backward(saved[0], saved);
  }

  static variable_list compute(const variable_list& saved, std::array<Tensor, F::kOperands> along, double eps,
                               bool straight_through, int64_t needs) {
    Sizes n;
    fit(saved[1], saved[2], false, n);
    std::array<Tensor, kInputs> in;
    for (size_t i = 0; i < in.size(); ++i)
      if (saved[i].defined()) in[i] = saved[i].contiguous();
    if (saved[3].defined() && along[kRe].defined() != along[kIm].defined())
      (along[kRe].defined() ? along[kIm] : along[kRe]) = uninitialised(in[2].sizes(), in[2].options()).zero_();
    for (Tensor& t : along)
      if (t.defined()) t = t.contiguous();
    variable_list grads{needs & 1 ? uninitialised(in[0].sizes(), in[0].options()) : Tensor()};
    variable_list of_operands = empty_gradients({saved.begin() + 1, saved.begin() + kOfOperands}, n, needs >> 1);
    const bool through_y = needs >> kOfOperands != 0;
    std::array<Tensor, 2> of_saved;
    for (Tensor& t : of_saved)
      if (through_y) t = uninitialised(in[5].sizes(), in[5].options());
    by_dtype(in[0].scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const auto read = [](const Tensor& t) { return t.defined() ? t.template const_data_ptr<T>() : nullptr; };
      const auto write = [](Tensor& t) { return t.defined() ? t.template mutable_data_ptr<T>() : nullptr; };
      const npu::NpuInputs<T> inputs{n.models,   n.rows,      n.in,        n.out,       read(in[1]),
                                     n.shared_x, read(in[2]), read(in[3]), read(in[4]), T(eps)};
      npu::kernels<T>().npu_second(
          {inputs, read(in[0]), read(in[5]), read(in[6]), straight_through, read(along[kX]), read(along[kRe]),
           read(along[kIm]), read(along[kGate]), write(grads[0]), write(of_operands[kX]), write(of_operands[kRe]),
           write(of_operands[kIm]), write(of_operands[kGate]), write(of_saved[0]), write(of_saved[1])},
          npu::second_threads(n.models, n.rows, n.in, n.out));
    });
    add_models(of_operands, n);
    std::move(of_operands.begin(), of_operands.end(), std::back_inserter(grads));
    std::move(of_saved.begin(), of_saved.end(), std::back_inserter(grads));
    return grads;
  }
};

template <>
inline variable_list differentiable_gradients<npu::NpuLayer>(const Tensor& grad_y, const variable_list& saved,
                                                             const Fast<npu::NpuLayer>::Options& options,
                                                             int64_t needs) {
  return NpuGradients::of_layer(grad_y, saved, options, needs);
}

// dP = grad_y y + grad_s s and dQ = grad_s y - grad_y s, which the kernels make of 1 in place of grad_y.
template <>
inline variable_list gradients_with_s<npu::NpuLayer>(const Tensor& grad_y, const Tensor& grad_s, variable_list saved,
                                                     const Fast<npu::NpuLayer>::Options& options, int64_t needs) {
  using F = Fast<npu::NpuLayer>;
  const Tensor y = saved[F::kOperands].contiguous(), s = saved[F::kOperands + 1].contiguous();
  const Tensor of_y = grad_y.defined() ? grad_y.contiguous() : grad_y, of_s = grad_s.contiguous();
  const Tensor of_p = uninitialised(y.sizes(), y.options()), minus_of_q = uninitialised(y.sizes(), y.options());
  const Tensor one = uninitialised(y.sizes(), y.options());
  by_dtype(y.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T *const y_at = y.template const_data_ptr<T>(), *const s_at = s.const_data_ptr<T>();
    const T *const a = of_y.defined() ? of_y.const_data_ptr<T>() : nullptr, *const b = of_s.const_data_ptr<T>();
    T *const p = of_p.mutable_data_ptr<T>(), *const q = minus_of_q.mutable_data_ptr<T>();
    T* const ones = one.mutable_data_ptr<T>();
    for (int64_t n = 0; n < y.numel(); ++n) {
      const T up = a == nullptr ? T(0) : a[n];
      p[n] = up * y_at[n] + b[n] * s_at[n];
      q[n] = up * s_at[n] - b[n] * y_at[n];
      ones[n] = T(1);
    }
  });
  saved[F::kOperands] = of_p;
  saved[F::kOperands + 1] = minus_of_q;
  return F::backward(one, saved, options, needs);
}

}  // namespace npu_fast_path
