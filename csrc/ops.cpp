// The operators' CPU implementations for torch. Checks, allocation, registration; the arithmetic
// is core/'s. LibTorch Stable ABI, target 2.10: one binary serves every torch >= 2.10 and every Python. Schemas and
// shape functions are registered by npu_kernels/_operators/ops.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "checks.h"
#include "huge_pages.h"
#include "layers.h"
#include "out_of_memory.h"
#include "precision.h"
#include "threads.h"

namespace {

using npu::check;
using npu::shape_of;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The sizes of one call, read off the operands, and whether these fit together.
struct Call : npu::Sizes {
  bool batched;  // the weights have a model dimension

  // twice: the weight's last dimension is 2 I.
  Call(const char* op, const Tensor& x, const Tensor& weight, const char* name, bool twice) {
    const int64_t dims = weight.dim();
    check(dims == 2 || dims == 3, op, ": ", name,
          " must have 2 dimensions or 3, the first of them the models, got shape ", shape_of(weight));
    batched = dims == 3;
    models = batched ? weight.size(0) : 1;
    out = weight.size(dims - 2);
    const int64_t last = weight.size(dims - 1);
    check(!twice || last % 2 == 0, op, ": ", name, " must have an even last dimension (2 in_features), got shape ",
          shape_of(weight));
    in = twice ? last / 2 : last;
    shared_x = batched && x.dim() == 2;
    check(x.dim() == dims || shared_x, op, ": x must have as many dimensions as the weights, or 2, got shape ",
          shape_of(x));
    rows = x.size(x.dim() - 2);
    check(x.size(x.dim() - 1) == in, op, ": x must have last dimension ", in, " (in_features), got shape ",
          shape_of(x));
    check(!batched || shared_x || x.size(0) == models, op, ": x must have first dimension ", models,
          " (num_models), got shape ", shape_of(x));
  }

  std::vector<int64_t> x_shape() const { return shape(in, shared_x); }
  std::vector<int64_t> y_shape() const { return shape(out, false); }
  // A shared x gets one gradient per model, which are added up.
  bool adds_models() const { return shared_x && models != 1; }
  std::vector<int64_t> grad_x_shape() const {
    return adds_models() ? std::vector<int64_t>{models, rows, in} : x_shape();
  }

 private:
  std::vector<int64_t> shape(int64_t features, bool shared) const {
    if (batched && !shared) return {models, rows, features};
    return {rows, features};
  }
};

// The stable ABI says only that an error happened, not which. These calls can only fail for lack of
// memory.
template <typename F>
Tensor new_tensor(F&& f) {
  try {
    return f();
  } catch (const std::exception&) {
    npu::out_of_memory();
  }
}
Tensor whole(const Tensor& t) {
  return new_tensor([&] { return torch::stable::contiguous(t); });
}
Tensor sum_models(const Tensor& t) {  // [K, ...] -> [...]
  return new_tensor([&] { return torch::stable::sum(t, std::vector<int64_t>{0}); });
}

// An operand as the core reads it: CPU, contiguous, of the call's dtype and of `count` elements.
template <typename T>
class Operand {
 public:
  Operand(const char* op, const char* name, const Tensor& t, ScalarType dtype, int64_t count) : tensor_(t) {
    check(t.scalar_type() == dtype, op, ": ", name, " must have the dtype of x");
    check(t.is_cpu(), op, ": ", name, " must be on the CPU, like x");
    check(t.numel() == count, op, ": ", name, " must have ", count, " elements, got shape ", shape_of(t));
    npu::check_storage(op, name, t, sizeof(T));
    if (!t.is_contiguous()) tensor_ = whole(t);
    data_ = static_cast<const T*>(tensor_.const_data_ptr());
  }
  operator const T*() const { return data_; }

 private:
  Tensor tensor_;  // keeps a contiguous copy alive
  const T* data_;
};

// An uninitialised contiguous tensor, from the allocator's own entry: new_empty looks its operator up by name at
// every call, which costs more than a small layer's arithmetic.
Tensor empty(const Tensor& like, const std::vector<int64_t>& shape, bool integers = false) {
  int32_t dtype = aoti_torch_dtype_int32();
  if (!integers) TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  int64_t strides[4] = {}, step = 1;
  for (size_t d = shape.size(); d-- > 0; step *= shape[d] > 1 ? shape[d] : 1) strides[d] = step;
  AtenTensorHandle handle;
  if (aoti_torch_empty_strided(int64_t(shape.size()), shape.data(), strides, dtype, aoti_torch_device_type_cpu(), -1,
                               &handle) != TORCH_SUCCESS)
    npu::out_of_memory(size_t(step), "elements");
  const Tensor result(handle);
  const size_t bytes = size_t(result.numel()) * result.element_size();
  if (bytes >= npu::kLeastForHugePages) npu::want_huge_pages(result.mutable_data_ptr(), bytes);
  return result;
}
Tensor absent(const Tensor& like) { return empty(like, {0}); }

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

template <typename F>
auto by_dtype(const char* op, const Tensor& x, F&& f) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return f(float{});
    case ScalarType::Double:
      return f(double{});
    default:
      throw std::runtime_error(std::string(op) + ": the CPU kernels compute in float32 and float64 only");
  }
}

// The core's logarithms begin at the least normal number.
template <typename T>
T checked_eps(const char* op, double eps) {
  check(eps >= std::numeric_limits<T>::min() && eps <= std::numeric_limits<T>::max(), op,
        ": eps must be finite and at least the least normal number, got ", eps);
  return T(eps);
}

// ---- the layers ----

using Optional = std::optional<Tensor>;

// What an operator of a layer gets: a number or a tensor for each place of its schema, taken from the stack in turn.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) : stack_(stack) {}
  template <typename V>
  V next() {
    return torch::stable::detail::to<V>(stack_[count_++]);
  }
  template <size_t N>
  void options(const std::array<npu::Option, N>& options, npu::OptionPlace place, double* values) {
    for (size_t i = 0; i < N; ++i) {
      if (!(options[i].places & place)) continue;
      const bool number = options[i].kind != npu::kFlag && options[i].kind != npu::kWord;
      values[i] = number ? next<double>() : next<bool>();
    }
  }

 private:
  StableIValue* stack_;
  size_t count_ = 0;
};

// The operators of a layer, made from its record.
template <typename L>
struct Registered {
  static constexpr size_t kWeights = L::weights.size(), kOperands = 1 + kWeights, kOptions = L::options.size();
  static constexpr size_t kKept = [] {
    size_t count = 0;
    for (const npu::Kept& kept : L::kept) count += kept.kind != npu::Kept::kParts;
    return count;
  }();

  // x and the weights, checked and contiguous, as the core reads them.
  template <typename T>
  struct Operands {
    std::array<std::optional<Operand<T>>, kOperands> tensors;
    std::array<const T*, kOperands> data{};
    std::array<double, kOptions> options;

    Operands(const char* op, const Call& n, const std::array<Optional, kOperands>& given,
             const std::array<double, kOptions>& values)
        : options(values) {
      const ScalarType dtype = given[0]->scalar_type();
      add(op, 0, "x", *given[0], dtype, (n.shared_x ? 1 : n.models) * n.rows * n.in);
      for (size_t w = 0; w < kWeights; ++w)
        if (given[1 + w])
          add(op, 1 + w, L::weights[w].name, *given[1 + w], dtype, n.models * elements(L::weights[w].shape, n));
      for (size_t i = 0; i < kOptions; ++i) options[i] = checked<T>(op, L::options[i], values[i]);
    }
    npu::Given<T> given(const Call& n) const { return {n, data.data(), options.data()}; }

   private:
    void add(const char* op, size_t at, const char* name, const Tensor& tensor, ScalarType dtype, int64_t count) {
      tensors[at].emplace(op, name, tensor, dtype, count);
      data[at] = *tensors[at];
    }
  };

  static int64_t elements(const char* shape, const Call& n) {
    int64_t count = 1;
    for (; *shape; ++shape) count *= *shape == 'O' ? n.out : *shape == 'I' ? n.in : 2 * n.in;
    return count;
  }
  template <typename T>
  static double checked(const char* op, const npu::Option& option, double value) {
    if (option.kind == npu::kFlag || option.kind == npu::kWord || (option.kind == npu::kNotNegative && value == 0))
      return value;
    check(value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max(), op, ": ", option.name,
          " must be finite and at least the least normal number, got ", value);
    return value;
  }

  static std::array<Optional, kOperands> operands(Arguments& arguments) {
    std::array<Optional, kOperands> found;
    found[0] = arguments.next<Tensor>();
    for (size_t w = 0; w < kWeights; ++w)
      found[1 + w] = L::weights[w].optional ? arguments.next<Optional>() : Optional(arguments.next<Tensor>());
    return found;
  }
  static Call call(const char* op, const std::array<Optional, kOperands>& given) {
    return Call(op, *given[0], *given[1], L::weights[0].name, npu::doubles_inputs<L>());
  }

  static void forward(StableIValue* stack, uint64_t, uint64_t) {
    static const std::string name = L::name + std::string("_forward");
    const char* op = name.c_str();
    Arguments arguments(stack);
    const std::array<Optional, kOperands> given = operands(arguments);
    std::array<double, kOptions> options{};
    arguments.options(L::options, npu::kInForward, options.data());
    const bool save = kKept > 0 && arguments.next<bool>();
    const Tensor& x = *given[0];
    const Call n = call(op, given);
    const std::vector<int64_t> shape = n.y_shape(), saved = save ? shape : std::vector<int64_t>{0};
    Tensor y = empty(x, shape);
    std::array<Optional, kKept> kept;
    std::array<void*, L::kept.size() + 1> into{};
    for (size_t i = 0; i < kKept; ++i) {
      kept[i] = empty(x, saved, L::kept[i].kind == npu::Kept::kFlags);
      if (save) into[i] = kept[i]->mutable_data_ptr();
    }
    by_dtype(op, x, [&](auto zero) {
      using T = decltype(zero);
      const Operands<T> checked(op, n, given, options);
      (npu::kernels<T>().*
       L::template forward_kernel<T>)(L::forward(npu::ForwardCall<T>{checked.given(n), data<T>(y), into.data()}),
                                      npu::torch_threads(n.models, n.rows, npu::factors<L>(n), n.out));
    });
    stack[0] = torch::stable::detail::from(y);
    for (size_t i = 0; i < kKept; ++i) stack[1 + i] = torch::stable::detail::from(*kept[i]);
  }

  static void backward(StableIValue* stack, uint64_t, uint64_t) {
    static const std::string name = L::name + std::string("_backward");
    const char* op = name.c_str();
    Arguments arguments(stack);
    const Tensor grad_y = arguments.next<Tensor>();
    const std::array<Optional, kOperands> given = operands(arguments);
    const Optional y = L::takes_y ? Optional(arguments.next<Tensor>()) : std::nullopt;
    std::array<Optional, kKept> saved;
    for (Optional& tensor : saved) tensor = arguments.next<Tensor>();
    std::array<double, kOptions> options{};
    arguments.options(L::options, npu::kInBackward, options.data());
    const int64_t needs = arguments.next<int64_t>();
    const Tensor& x = *given[0];
    const Call n = call(op, given);
    const int64_t outputs = n.models * n.rows * n.out;

    std::array<Optional, kOperands> grads;
    std::array<void*, kOperands> into{};
    for (size_t i = 0; i < kOperands; ++i) {
      const bool wanted = given[i] && needs >> i & 1;
      grads[i] = !wanted  ? absent(x)
                 : i == 0 ? empty(x, n.grad_x_shape())
                          : empty(x, std::vector<int64_t>(given[i]->sizes().begin(), given[i]->sizes().end()));
      if (wanted) into[i] = grads[i]->mutable_data_ptr();
    }
    by_dtype(op, x, [&](auto zero) {
      using T = decltype(zero);
      const ScalarType dtype = x.scalar_type();
      const Operands<T> checked(op, n, given, options);
      const Operand<T> upstream(op, "grad_y", grad_y, dtype, outputs);
      std::optional<Operand<T>> output;
      if (y) output.emplace(op, "y", *y, dtype, outputs);
      std::array<std::optional<Operand<T>>, kKept> reals;
      std::array<Optional, kKept> flags;
      std::array<const void*, L::kept.size() + 1> kept{};
      for (size_t i = 0; i < kKept; ++i) {
        const char* label = L::kept[i].name;
        if (L::kept[i].kind == npu::Kept::kReal) {
          reals[i].emplace(op, label, *saved[i], dtype, outputs);
          kept[i] = static_cast<const T*>(*reals[i]);
          continue;
        }
        check(saved[i]->scalar_type() == ScalarType::Int && saved[i]->is_cpu() && saved[i]->numel() == outputs, op,
              ": ", label, " must be int32 on the CPU with ", outputs, " elements, got shape ", shape_of(*saved[i]));
        npu::check_storage(op, label, *saved[i], sizeof(int32_t));
        flags[i] = saved[i]->is_contiguous() ? *saved[i] : whole(*saved[i]);
        kept[i] = flags[i]->const_data_ptr();
      }
      std::array<T*, kOperands> gradients;
      for (size_t i = 0; i < kOperands; ++i) gradients[i] = static_cast<T*>(into[i]);
      const npu::BackwardCall<T> call{checked.given(n), upstream, output ? static_cast<const T*>(*output) : nullptr,
                                      kept.data(), gradients.data()};
      (npu::kernels<T>().*
       L::template backward_kernel<T>)(L::backward(call),
                                       npu::torch_threads(n.models, n.rows, npu::factors<L>(n), n.out));
    });
    if (needs & 1 && n.adds_models()) grads[0] = sum_models(*grads[0]);
    for (size_t i = 0; i < kOperands; ++i) stack[i] = torch::stable::detail::from(*grads[i]);
  }
};

// The sizes of a time loop: u0 [B, D] or [K, B, D], weight_re [h, D] or [K, h, D].
struct OdeSizes {
  int64_t models, starts, features, hidden, steps, stages;
  bool batched;

  OdeSizes(const char* op, const Tensor& starts_of, int64_t dims, const Tensor& weight_re, int64_t tableau,
           int64_t steps)
      : steps(steps), stages(1) {
    check(weight_re.dim() == 2 || weight_re.dim() == 3, op, ": weight_re must have shape (h, D) or (K, h, D), got ",
          shape_of(weight_re));
    batched = weight_re.dim() == 3;
    models = batched ? weight_re.size(0) : 1;
    hidden = weight_re.size(weight_re.dim() - 2);
    features = weight_re.size(weight_re.dim() - 1);
    const bool fits = starts_of.dim() == weight_re.dim() + dims && (!batched || starts_of.size(0) == models) &&
                      starts_of.size(starts_of.dim() - 1) == features;
    check(fits, op, ": the states must have shape (", batched ? "K, " : "", "B, ", dims ? "steps + 1, " : "", features,
          "), got ", shape_of(starts_of));
    starts = starts_of.size(batched ? 1 : 0);
    while (stages * (stages + 1) / 2 < tableau) ++stages;
    check(stages * (stages + 1) / 2 == tableau, op, ": tableau must be a lower triangle by rows, got ", tableau,
          " numbers");
    check(steps > 0, op, ": steps must be positive, got ", steps);
    // More than the bytes of all that is allocated. A dimension of size 0 leaves the others without memory, so without
    // a bound.
    for (const int64_t width : {features, hidden}) npu::product(op, models, starts, steps, stages, width, 1 << 14);
    npu::product(op, models, starts, features, hidden, 1 << 10);
  }

  std::vector<int64_t> start_shape() const { return shape({starts, features}); }
  std::vector<int64_t> trajectory_shape() const { return shape({starts, steps + 1, features}); }
  npu::TorchThreads threads() const { return npu::ode_threads(models * starts, steps * stages, features, hidden); }

 private:
  std::vector<int64_t> shape(std::vector<int64_t> of_model) const {
    if (batched) of_model.insert(of_model.begin(), models);
    return of_model;
  }
};

template <typename T>
struct OdeOperands {
  Operand<T> weight_re, weight;
  std::optional<Operand<T>> weight_im, gate;
  npu::OdeInputs<T> inputs;

  OdeOperands(const char* op, const OdeSizes& n, const Tensor& like, const Tensor& weight_re,
              const std::optional<Tensor>& weight_im, const std::optional<Tensor>& gate, const Tensor& weight,
              const std::vector<double>& tableau, double dt, double eps, bool clip, bool last_stage)
      : weight_re(op, "weight_re", weight_re, like.scalar_type(), n.models * n.hidden * n.features),
        weight(op, "weight", weight, like.scalar_type(), n.models * n.hidden * n.features) {
    const ScalarType dtype = like.scalar_type();
    if (weight_im) this->weight_im.emplace(op, "weight_im", *weight_im, dtype, n.models * n.hidden * n.features);
    if (gate) this->gate.emplace(op, "gate", *gate, dtype, n.models * n.features);
    inputs = {n.models,
              n.starts,
              n.features,
              n.hidden,
              n.steps,
              n.stages,
              this->weight_re,
              this->weight_im ? *this->weight_im : static_cast<const T*>(nullptr),
              this->gate ? *this->gate : static_cast<const T*>(nullptr),
              this->weight,
              clip,
              checked_eps<T>(op, eps),
              tableau.data(),
              dt,
              last_stage};
  }
};

std::tuple<Tensor, Tensor, Tensor> ode_forward(const Tensor& u0, const Tensor& weight_re,
                                               std::optional<Tensor> weight_im, std::optional<Tensor> gate,
                                               const Tensor& weight, std::vector<double> tableau, int64_t steps,
                                               double dt, double eps, bool clip, bool derivatives, bool save) {
  const char* op = "ode_forward";
  const OdeSizes n(op, u0, 0, weight_re, int64_t(tableau.size()), steps);
  Tensor trajectory = empty(u0, n.trajectory_shape());
  Tensor slopes = derivatives ? empty(u0, n.trajectory_shape()) : absent(u0);
  Tensor stages = absent(u0);
  by_dtype(op, u0, [&](auto zero) {
    using T = decltype(zero);
    const OdeOperands<T> operands(op, n, u0, weight_re, weight_im, gate, weight, tableau, dt, eps, clip, derivatives);
    if (save) {
      const auto shape = operands.inputs.stages_shape();
      stages = empty(u0, std::vector<int64_t>(shape.begin(), shape.end()));
    }
    const Operand<T> start(op, "u0", u0, u0.scalar_type(), n.models * n.starts * n.features);
    npu::kernels<T>().ode_forward({operands.inputs, start, data<T>(trajectory), derivatives ? data<T>(slopes) : nullptr,
                                   save ? data<T>(stages) : nullptr},
                                  n.threads());
  });
  return {trajectory, slopes, stages};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> ode_backward(
    std::optional<Tensor> grad_trajectory, std::optional<Tensor> grad_derivatives, const Tensor& trajectory,
    const Tensor& weight_re, std::optional<Tensor> weight_im, std::optional<Tensor> gate, const Tensor& weight,
    const Tensor& stages, std::vector<double> tableau, double dt, double eps, bool clip, bool straight_through,
    int64_t needs) {
  const char* op = "ode_backward";
  check(trajectory.dim() > 2, op, ": trajectory must have shape (K, B, steps + 1, D) or (B, steps + 1, D), got ",
        shape_of(trajectory));
  const OdeSizes n(op, trajectory, 1, weight_re, int64_t(tableau.size()), trajectory.size(trajectory.dim() - 2) - 1);
  const auto like = [&](const Tensor& t, bool wanted) {
    return wanted ? empty(trajectory, std::vector<int64_t>(t.sizes().begin(), t.sizes().end())) : absent(trajectory);
  };
  const bool needs_im = weight_im && needs & 4, needs_gate = gate && needs & 8;
  Tensor grad_u0 = needs & 1 ? empty(trajectory, n.start_shape()) : absent(trajectory);
  Tensor grad_weight_re = like(weight_re, needs & 2), grad_weight_im = like(weight_im.value_or(weight), needs_im);
  Tensor grad_gate = like(gate.value_or(weight), needs_gate), grad_weight = like(weight, needs & 16);
  by_dtype(op, trajectory, [&](auto zero) {
    using T = decltype(zero);
    const ScalarType dtype = trajectory.scalar_type();
    const bool last = stages.numel() > 0 ? stages.size(1) > n.steps * n.stages : bool(grad_derivatives);
    const OdeOperands<T> operands(op, n, trajectory, weight_re, weight_im, gate, weight, tableau, dt, eps, clip, last);
    const int64_t states = n.models * n.starts * (n.steps + 1) * n.features;
    const Operand<T> path(op, "trajectory", trajectory, dtype, states);
    std::optional<Operand<T>> of_trajectory, of_derivatives, kept;
    if (grad_trajectory) of_trajectory.emplace(op, "grad_trajectory", *grad_trajectory, dtype, states);
    if (grad_derivatives) of_derivatives.emplace(op, "grad_derivatives", *grad_derivatives, dtype, states);
    if (stages.numel() > 0) {
      const auto shape = operands.inputs.stages_shape();
      check(last || !grad_derivatives, op, ": stages were kept without derivatives, so that they have no gradient");
      kept.emplace(op, "stages", stages, dtype, shape[0] * shape[1] * shape[2] * shape[3]);
    }
    const T* none = nullptr;
    npu::kernels<T>().ode_backward(
        {operands.inputs, of_trajectory ? *of_trajectory : none, of_derivatives ? *of_derivatives : none, path,
         kept ? *kept : none, straight_through, needs & 1 ? data<T>(grad_u0) : nullptr,
         needs & 2 ? data<T>(grad_weight_re) : nullptr, needs_im ? data<T>(grad_weight_im) : nullptr,
         needs_gate ? data<T>(grad_gate) : nullptr, needs & 16 ? data<T>(grad_weight) : nullptr},
        n.threads());
  });
  return {grad_u0, grad_weight_re, grad_weight_im, grad_gate, grad_weight};
}

}  // namespace

#define NPU_IMPL(name) library.impl(#name, &npu::naming_memory<TORCH_BOX(&name), StableIValue>)

STABLE_TORCH_LIBRARY_IMPL(npu_kernels, CPU, library) {
  npu::each_layer([&](auto layer) {
    using L = decltype(layer);
    if constexpr (L::registered) {
      const std::string name = L::name;
      library.impl((name + "_forward").c_str(), &npu::naming_memory<Registered<L>::forward, StableIValue>);
      library.impl((name + "_backward").c_str(), &npu::naming_memory<Registered<L>::backward, StableIValue>);
    }
  });
  NPU_IMPL(ode_forward);
  NPU_IMPL(ode_backward);
}

// For ctypes (npu_kernels/_backends/cpu.py).
extern "C" {
__attribute__((visibility("default"))) const char* npu_kernels_isa() { return npu::isa(); }
__attribute__((visibility("default"))) const char* npu_kernels_supported_isas() { return npu::supported_isas(); }
__attribute__((visibility("default"))) int npu_kernels_set_isa(const char* name) { return npu::set_isa(name) ? 0 : 1; }
}
