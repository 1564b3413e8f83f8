// The layers' operators for torch on the CPU, made from their records. Checks, allocation, registration; the arithmetic
// is core/'s. LibTorch Stable ABI, target 2.10: one binary serves every torch >= 2.10 and every Python. Schemas and
// shape functions are registered by npu_kernels/_operators/ops.py.
#include <torch/csrc/stable/library.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "layers.h"
#include "operands.h"
#include "platform/threads.h"

namespace {

using npu::absent;
using npu::by_dtype;
using npu::Call;
using npu::check;
using npu::data;
using npu::empty;
using npu::Operand;
using npu::Optional;
using npu::ScalarType;
using npu::shape_of;
using npu::sum_models;
using npu::Tensor;
using npu::whole;

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
  static constexpr size_t kSaved = [] {
    size_t count = 0;
    for (const npu::Saved& saved : L::saved) count += saved.kind != npu::Saved::kParts;
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
    const bool save = kSaved > 0 && arguments.next<bool>();
    const Tensor& x = *given[0];
    const Call n = call(op, given);
    const std::vector<int64_t> shape = n.y_shape(), saved_shape = save ? shape : std::vector<int64_t>{0};
    Tensor y = empty(x, shape);
    std::array<Optional, kSaved> saved;
    std::array<void*, L::saved.size() + 1> into{};
    for (size_t i = 0; i < kSaved; ++i) {
      const bool flags = L::saved[i].kind == npu::Saved::kFlags;
      saved[i] = empty(x, saved_shape, flags ? std::optional(aoti_torch_dtype_int32()) : std::nullopt);
      if (save) into[i] = saved[i]->mutable_data_ptr();
    }
    by_dtype(op, x, [&](auto zero) {
      using T = decltype(zero);
      const Operands<T> checked(op, n, given, options);
      (npu::kernels<T>().*
       L::template forward_kernel<T>)(L::forward(npu::ForwardCall<T>{checked.given(n), data<T>(y), into.data()}),
                                      npu::torch_threads(n.models, n.rows, npu::factors<L>(n), n.out));
    });
    stack[0] = torch::stable::detail::from(y);
    for (size_t i = 0; i < kSaved; ++i) stack[1 + i] = torch::stable::detail::from(*saved[i]);
  }

  static void backward(StableIValue* stack, uint64_t, uint64_t) {
    static const std::string name = L::name + std::string("_backward");
    const char* op = name.c_str();
    Arguments arguments(stack);
    const Tensor grad_y = arguments.next<Tensor>();
    const std::array<Optional, kOperands> given = operands(arguments);
    const Optional y = L::takes_y ? Optional(arguments.next<Tensor>()) : std::nullopt;
    std::array<Optional, kSaved> saved;
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
      std::array<std::optional<Operand<T>>, kSaved> reals;
      std::array<Optional, kSaved> flags;
      std::array<const void*, L::saved.size() + 1> saved_data{};
      for (size_t i = 0; i < kSaved; ++i) {
        const char* label = L::saved[i].name;
        if (L::saved[i].kind == npu::Saved::kReal) {
          reals[i].emplace(op, label, *saved[i], dtype, outputs);
          saved_data[i] = static_cast<const T*>(*reals[i]);
          continue;
        }
        check(saved[i]->scalar_type() == ScalarType::Int && saved[i]->is_cpu() && saved[i]->numel() == outputs, op,
              ": ", label, " must be int32 on the CPU with ", outputs, " elements, got shape ", shape_of(*saved[i]));
        npu::check_storage(op, label, *saved[i], sizeof(int32_t));
        flags[i] = saved[i]->is_contiguous() ? *saved[i] : whole(*saved[i]);
        saved_data[i] = flags[i]->const_data_ptr();
      }
      std::array<T*, kOperands> gradients;
      for (size_t i = 0; i < kOperands; ++i) gradients[i] = static_cast<T*>(into[i]);
      const npu::BackwardCall<T> call{checked.given(n), upstream, output ? static_cast<const T*>(*output) : nullptr,
                                      saved_data.data(), gradients.data()};
      (npu::kernels<T>().*
       L::template backward_kernel<T>)(L::backward(call),
                                       npu::torch_threads(n.models, n.rows, npu::factors<L>(n), n.out));
    });
    if (needs & 1 && n.adds_models()) grads[0] = sum_models(*grads[0]);
    for (size_t i = 0; i < kOperands; ++i) stack[i] = torch::stable::detail::from(*grads[i]);
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(npu_kernels, CPU, library) {
  npu::each_layer([&](auto layer) {
    using L = decltype(layer);
    if constexpr (L::registered) {
      const std::string name = L::name;
      library.impl((name + "_forward").c_str(), &npu::naming_memory<Registered<L>::forward, StableIValue>);
      library.impl((name + "_backward").c_str(), &npu::naming_memory<Registered<L>::backward, StableIValue>);
    }
  });
}

// For ctypes (npu_kernels/_operators/cpu.py).
extern "C" {
__attribute__((visibility("default"))) const char* npu_kernels_isa() { return npu::isa(); }
__attribute__((visibility("default"))) const char* npu_kernels_supported_isas() { return npu::supported_isas(); }
__attribute__((visibility("default"))) int npu_kernels_set_isa(const char* name) { return npu::set_isa(name) ? 0 : 1; }
}
