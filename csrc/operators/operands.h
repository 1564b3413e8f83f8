// The operands and results of an operator: what the operators of layers and of ODE solvers share.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "checks.h"
#include "layers/record.h"
#include "out_of_memory.h"
#include "platform/huge_pages.h"

namespace npu {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Optional = std::optional<Tensor>;

// The sizes of one call, read off the operands, and whether these fit together.
struct Call : Sizes {
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
    out_of_memory();
  }
}
inline Tensor whole(const Tensor& t) {
  return new_tensor([&] { return torch::stable::contiguous(t); });
}
inline Tensor sum_models(const Tensor& t) {  // [K, ...] -> [...]
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
    check_storage(op, name, t, sizeof(T));
    if (!t.is_contiguous()) tensor_ = whole(t);
    data_ = static_cast<const T*>(tensor_.const_data_ptr());
  }
  operator const T*() const { return data_; }

 private:
  Tensor tensor_;  // keeps a contiguous copy alive
  const T* data_;
};

// An uninitialised contiguous tensor, of like's dtype unless another one is wanted. From the allocator's own entry:
// new_empty looks its operator up by name at every call, which costs more than a small layer's arithmetic.
inline Tensor empty(const Tensor& like, const std::vector<int64_t>& shape, std::optional<int32_t> other = {}) {
  int32_t dtype = other.value_or(0);
  if (!other) TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  int64_t strides[4] = {}, step = 1;
  for (size_t d = shape.size(); d-- > 0; step *= shape[d] > 1 ? shape[d] : 1) strides[d] = step;
  AtenTensorHandle handle;
  if (aoti_torch_empty_strided(int64_t(shape.size()), shape.data(), strides, dtype, aoti_torch_device_type_cpu(), -1,
                               &handle) != TORCH_SUCCESS)
    out_of_memory(size_t(step), "elements");
  const Tensor result(handle);
  const size_t bytes = size_t(result.numel()) * result.element_size();
  if (bytes >= kMinForHugePages) want_huge_pages(result.mutable_data_ptr(), bytes);
  return result;
}
inline Tensor absent(const Tensor& like) { return empty(like, {0}); }

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

}  // namespace npu
