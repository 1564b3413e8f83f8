// A layer's function and autograd node, made from its record (layers/record.h).
#pragma once

#include <algorithm>
#include <array>

#include "matrix.h"
#include "sizes.h"

namespace npu_fast_path {

template <typename L>
struct FastPath;

template <typename L>
struct Fast {
  static constexpr size_t kWeights = L::weights.size(), kOperands = 1 + kWeights, kSaved = L::saved.size();
  static constexpr size_t kOptions = L::options.size();
  using Operands = std::array<Tensor, kOperands>;  // x and the weights
  using Options = std::array<double, kOptions>;
  using Results = std::array<Tensor, 1 + kSaved>;  // y and what is saved

  static size_t saved_at(size_t index) { return kOperands + L::takes_y + index; }

  static Operands contiguous(const Tensor* given) {
    Operands found;
    for (size_t i = 0; i < kOperands; ++i)
      if (given[i].defined()) found[i] = given[i].contiguous();
    return found;
  }

  template <typename T>
  static std::array<const T*, kOperands> data(const Operands& operands) {
    std::array<const T*, kOperands> found{};
    for (size_t i = 0; i < kOperands; ++i)
      if (operands[i].defined()) found[i] = operands[i].template const_data_ptr<T>();
    return found;
  }

  static Results forward(const Operands& given, const Options& options, const Sizes& n, bool save) {
    const Operands operands = contiguous(given.data());
    Results results{empty_result(operands[0], n)};
    std::array<void*, kSaved + 1> saved{};
    for (size_t i = 0; i < kSaved && save; ++i) {
      const auto kind = L::saved[i].kind;
      Tensor& result = results[1 + i];
      if (kind == npu::Saved::kParts)
        result = uninitialised({L::saved[i].parts, operands[1].numel()}, operands[1].options());
      else if (kind == npu::Saved::kFlags)
        result = uninitialised(results[0].sizes(), results[0].options().dtype(at::kInt));
      else result = empty_result(operands[0], n);
      saved[i] = result.mutable_data_ptr();
    }
    if constexpr (L::by_matrix) {
      if (!takes(operands[0], n)) {
        const Tensor into = kSaved > 0 && save ? results.back() : Tensor();
        multiply(operands[0], matrix(operands, options, n, saved.data(), into), n, results[0]);
        return results;
      }
    }
    by_dtype(operands[0].scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const auto in = data<T>(operands);
      const npu::ForwardCall<T> call{
          {n, in.data(), options.data()}, results[0].template mutable_data_ptr<T>(), saved.data()};
      (npu::kernels<T>().*L::template forward_kernel<T>)(L::forward(call), threads_for<L>(n));
    });
    return results;
  }

  static bool takes(const Tensor& x, const Sizes& n) { return L::takes(n, x.scalar_type() == at::kFloat); }

  // What y is x times of, [(K,) O, I], in that tensor if it is defined.
  static Tensor matrix(const Operands& operands, const Options& options, const Sizes& n, void* const* saved,
                       const Tensor& into) {
    if (L::weight_is_matrix(options.data())) return operands[1];
    const Tensor result = into.defined() ? into : uninitialised(operands[1].sizes(), operands[1].options());
    by_dtype(result.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const auto in = data<T>(operands);
      const npu::ForwardCall<T> call{
          {n, in.data(), options.data()}, nullptr, saved, result.template mutable_data_ptr<T>()};
      (npu::kernels<T>().*L::template forward_kernel<T>)(L::forward(call), threads_for_matrix(n));
    });
    return result.view(operands[1].sizes());
  }

  // saved: the operands, y where it is taken, what was saved.
  static variable_list backward(const Tensor& grad_y, const variable_list& saved, const Options& options,
                                int64_t needs) {
    Sizes n;
    fit(saved[0], saved[1], npu::doubles_inputs<L>(), n);
    const Operands operands = contiguous(saved.data());
    const Tensor upstream = grad_y.contiguous();
    Results results;
    for (size_t i = L::takes_y ? 0 : 1; i < results.size(); ++i) results[i] = saved[saved_at(0) + i - 1].contiguous();
    variable_list grads = empty_gradients({saved.begin(), saved.begin() + kOperands}, n, needs);
    std::array<const void*, kSaved + 1> saved_data{};
    for (size_t i = 0; i < kSaved; ++i) saved_data[i] = results[1 + i].const_data_ptr();
    bool known = false;  // the gradient of x, and that of the matrix, which takes the place of a weight's
    Tensor grad_matrix;
    if constexpr (L::by_matrix) {
      known = !takes(saved[0], n);
      if (known) {
        for (const Tensor& grad : grads)
          if (&grad != grads.data() && grad.defined()) grad_matrix = grad;
        const std::array<void*, 1> saves_nothing{};
        if (grads[0].defined()) {
          const Tensor factor = kSaved > 0 ? results.back().view(operands[1].sizes())
                                           : matrix(operands, options, n, saves_nothing.data(), Tensor());
          multiply_back(upstream, factor, n, grads[0]);
        }
        if (!grad_matrix.defined()) return grads;  // autograd adds up the models
        multiply_rows(upstream, operands[0], n, grad_matrix);
      }
    }
    by_dtype(saved[0].scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const auto in = data<T>(operands);
      std::array<T*, kOperands> out{};
      for (size_t i = known ? 1 : 0; i < kOperands; ++i)
        if (grads[i].defined()) out[i] = grads[i].template mutable_data_ptr<T>();
      const npu::BackwardCall<T> call{{n, in.data(), options.data()},
                                      known ? nullptr : upstream.const_data_ptr<T>(),
                                      L::takes_y ? results[0].template const_data_ptr<T>() : nullptr,
                                      saved_data.data(),
                                      out.data(),
                                      known ? grad_matrix.template const_data_ptr<T>() : nullptr};
      const auto run = npu::kernels<T>().*L::template backward_kernel<T>;
      if (known) run(L::backward(call), threads_for_matrix(n));
      else run(L::backward(call), threads_for<L>(n));
    });
    add_models(grads, n);
    return grads;
  }

  // Whether the backward may call the kernels, by itself or, where it has to build a graph, in a node.
  static bool plain_backward(const Tensor& grad_y, const variable_list& saved) {
    const at::ScalarType dtype = saved[0].scalar_type();
    if ((at::GradMode::is_enabled() && !L::second) || !nothing_watches() || !plain(grad_y, dtype)) return false;
    for (size_t i = 0; i < saved.size(); ++i) {
      const bool flags = i >= saved_at(0) && L::saved[i - saved_at(0)].kind == npu::Saved::kFlags;
      if (saved[i].defined() && !plain(saved[i], flags ? at::kInt : dtype)) return false;
    }
    return true;
  }

  static variable_list general(const Tensor& grad_y, const variable_list& saved, const Options& options,
                               int64_t needs) {
    const py::gil_scoped_acquire gil;
    py::list arguments;
    arguments.append(py::cast(grad_y));
    for (size_t i = 0; i < saved.size(); ++i) {
      if (i >= saved_at(0) && L::saved[i - saved_at(0)].kind == npu::Saved::kParts) continue;
      arguments.append(saved[i].defined() ? py::cast(saved[i]) : py::object(py::none()));
    }
    for (size_t i = 0; i < kOptions; ++i) {
      const bool number = L::options[i].kind != npu::kFlag && L::options[i].kind != npu::kWord;
      arguments.append(number ? py::object(py::float_(options[i])) : py::object(py::bool_(options[i] != 0)));
    }
    arguments.append(py::int_(needs));
    return general_gradients(L::name, kOperands, py::tuple(arguments));
  }

  static bool unpack_option(PyObject* object, const npu::Option& option, at::ScalarType dtype, double& value) {
    switch (option.kind) {
      case npu::kEps:
        return unpack_eps(object, dtype, value);
      case npu::kNotNegative:
        if (PyFloat_CheckExact(object) && PyFloat_AS_DOUBLE(object) == 0) {
          value = 0;
          return true;
        }
        [[fallthrough]];
      case npu::kPositive:
        return object != Py_None && unpack_eps(object, dtype, value);
      case npu::kFlag:
        value = object == Py_True;
        return object == Py_True || object == Py_False;
      case npu::kWord:
        value = is(object, option.words[1]);
        return value != 0 || is(object, option.words[0]);
    }
    return false;
  }

  // x, the weights, and each option that the fast path has.
  static PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count < Py_ssize_t(kOperands) || !THPVariable_CheckExact(args[0])) Py_RETURN_NOTIMPLEMENTED;
    const at::ScalarType dtype = THPVariable_Unpack(args[0]).scalar_type();
    if (!real(dtype) || !nothing_watches()) Py_RETURN_NOTIMPLEMENTED;
    Operands operands;
    bool differentiable = false;
    for (size_t i = 0; i < kOperands; ++i) {
      const bool absent = args[i] == Py_None;
      if ((absent && (i == 0 || !L::weights[i - 1].optional)) || !unpack(args[i], dtype, operands[i]))
        Py_RETURN_NOTIMPLEMENTED;
      differentiable = differentiable || needs_grad(operands[i]);
    }
    differentiable = differentiable && at::GradMode::is_enabled();
    if (differentiable && hooks_see_saved()) Py_RETURN_NOTIMPLEMENTED;
    Options options{};
    Py_ssize_t at = kOperands;
    for (size_t i = 0; i < kOptions; ++i) {
      if (!(L::options[i].places & npu::kOnFastPath)) continue;
      if (at >= count || !unpack_option(args[at++], L::options[i], dtype, options[i])) Py_RETURN_NOTIMPLEMENTED;
    }
    Sizes n;
    if (at != count || !fit(operands[0], operands[1], npu::doubles_inputs<L>(), n) ||
        (!L::by_matrix && !L::takes(n, dtype == at::kFloat)) || !belong(operands, n))
      Py_RETURN_NOTIMPLEMENTED;
    Tensor y;
    {
      const pybind11::gil_scoped_release without_gil;
      y = differentiable ? apply(operands, options, n, std::make_index_sequence<kOperands>{})
                         : forward(operands, options, n, false)[0];
    }
    return THPVariable_Wrap(std::move(y));
  }

 private:
  // Whether the other weights belong to the first one.
  static bool belong(const Operands& operands, const Sizes& n) {
    for (size_t w = 1; w < kWeights; ++w) {
      const Tensor& tensor = operands[1 + w];
      if (!tensor.defined()) continue;
      const auto sizes = tensor.sizes();
      if (L::weights[w].shape[1] != '\0') {
        if (sizes != operands[1].sizes()) return false;
      } else if (sizes.size() != size_t(operands[1].dim() - 1) ||
                 sizes.back() != (L::weights[w].shape[0] == 'I' ? n.in : n.out) ||
                 (sizes.size() == 2 && sizes[0] != n.models)) {
        return false;
      }
    }
    return true;
  }

  // An undefined tensor, as autograd has absent ones. All tensors come last, so that autograd sees them.
  template <size_t I>
  static auto seen(const Operands& operands) {
    if constexpr (I == 0) {
      return operands[I];
    } else if constexpr (L::weights[I - 1].optional) {
      return operands[I].defined() ? std::optional<Tensor>(operands[I]) : std::nullopt;
    } else {
      return operands[I];
    }
  }
  template <size_t... I>
  static Tensor apply(const Operands& operands, const Options& options, const Sizes& n, std::index_sequence<I...>) {
    auto results = FastPath<L>::apply(operands, options, n, seen<I>(operands)...);
    if constexpr (L::second) return std::move(results[0]);
    else return results;
  }
};

// The gradients as functions that autograd can differentiate, of a layer with kernels for second derivatives
// (second.h).
template <typename L>
variable_list differentiable_gradients(const Tensor& grad_y, const variable_list& saved,
                                       const typename Fast<L>::Options& options, int64_t needs);

// The gradients where something came for s, too, which the layer saves for them.
template <typename L>
variable_list gradients_with_s(const Tensor& grad_y, const Tensor& grad_s, variable_list saved,
                               const typename Fast<L>::Options& options, int64_t needs);

// The autograd node, which torch shows by the layer's name. What is saved is an output where there are second
// derivatives, so that these can return a gradient for it.
template <typename L>
struct FastPath : Node<FastPath<L>> {
  using F = Fast<L>;

  template <typename... Tensors>
  static auto forward(AutogradContext* ctx, const typename F::Operands& operands, const typename F::Options& options,
                      const Sizes& n, const Tensors&...) {
    const typename F::Results results = F::forward(operands, options, n, true);
    variable_list saved(operands.begin(), operands.end());
    saved.insert(saved.end(), results.begin() + (L::takes_y ? 0 : 1), results.end());
    ctx->save_for_backward(std::move(saved));
    for (size_t i = 0; i < F::kOptions; ++i) ctx->saved_data[L::options[i].name] = options[i];
    ctx->set_materialize_grads(false);
    if constexpr (L::second) return variable_list(results.begin(), results.end());
    else return results[0];
  }

  static variable_list gradients(AutogradContext* ctx, const variable_list& grad_outputs) {
    constexpr size_t kBefore = 3;  // arguments of forward before the tensors
    variable_list result(kBefore + F::kOperands);
    const Tensor& grad_y = grad_outputs[0];
    if (!grad_y.defined() && !(L::second && grad_outputs[1].defined())) return result;
    const variable_list saved = ctx->get_saved_variables();
    const int64_t needs = needed(ctx, saved, F::kOperands);
    typename F::Options options;
    for (size_t i = 0; i < F::kOptions; ++i) options[i] = ctx->saved_data[L::options[i].name].toDouble();
    variable_list grads;
    if (L::second && grad_outputs[1].defined()) {
      if constexpr (L::second) grads = gradients_with_s<L>(grad_y, grad_outputs[1], saved, options, needs);
    } else if (!F::plain_backward(grad_y, saved)) {
      grads = F::general(grad_y, saved, options, needs);
    } else if (!at::GradMode::is_enabled()) {
      grads = F::backward(grad_y, saved, options, needs);
    } else {
      if constexpr (L::second) grads = differentiable_gradients<L>(grad_y, saved, options, needs);
    }
    std::move(grads.begin(), grads.end(), result.begin() + kBefore);
    return result;
  }
};

}  // namespace npu_fast_path
