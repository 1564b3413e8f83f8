// The operator of the Neural Power Unit's second derivatives: checks, allocation, registration.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>

#include "layers.h"
#include "operands.h"
#include "platform/threads.h"

namespace {

using npu::absent;
using npu::Call;
using npu::check;
using npu::data;
using npu::empty;
using npu::Operand;
using npu::Optional;
using npu::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> npu_second(const Tensor& grad_y, const Tensor& x,
                                                              const Tensor& weight_re, Optional weight_im,
                                                              Optional gate, const Tensor& y, const Tensor& s,
                                                              Optional along_x, Optional along_re, Optional along_im,
                                                              Optional along_gate, double eps, bool straight_through,
                                                              int64_t needs) {
  const char* op = "npu_second";
  const Call n(op, x, weight_re, "weight_re", false);
  check(weight_im ? bool(along_re) == bool(along_im) : !along_im, op,
        ": along_re and along_im must be given together, and along_im only with weight_im");
  check(gate || !along_gate, op, ": along_gate must be given only with gate");
  const auto like = [&](int bit, const std::vector<int64_t>& shape) {
    return needs >> bit & 1 ? empty(x, shape) : absent(x);
  };
  const auto shape = [](const Tensor& t) { return std::vector<int64_t>(t.sizes().begin(), t.sizes().end()); };
  const bool needs_im = weight_im && needs & 8, needs_gate = gate && needs & 16;
  Tensor of_grad_y = like(0, n.y_shape()), of_x = like(1, n.grad_x_shape()), of_re = like(2, shape(weight_re));
  Tensor of_im = needs_im ? empty(x, shape(*weight_im)) : absent(x);
  Tensor of_gate = needs_gate ? empty(x, shape(*gate)) : absent(x);
  npu::by_dtype(op, x, [&](auto zero) {
    using T = decltype(zero);
    const auto dtype = x.scalar_type();
    const int64_t values = (n.shared_x ? 1 : n.models) * n.rows * n.in, outputs = n.models * n.rows * n.out;
    const int64_t weights = n.models * n.out * n.in;
    const auto optional = [&](const char* name, const Optional& t, int64_t count) {
      std::optional<Operand<T>> operand;
      if (t) operand.emplace(op, name, *t, dtype, count);
      return operand;
    };
    const auto pointer = [](const std::optional<Operand<T>>& operand) {
      return operand ? static_cast<const T*>(*operand) : nullptr;
    };
    const Operand<T> upstream(op, "grad_y", grad_y, dtype, outputs), input(op, "x", x, dtype, values);
    const Operand<T> re(op, "weight_re", weight_re, dtype, weights);
    const Operand<T> output(op, "y", y, dtype, outputs), turned(op, "s", s, dtype, outputs);
    const auto im = optional("weight_im", weight_im, weights), relevance = optional("gate", gate, n.models * n.in);
    const auto by_x = optional("along_x", along_x, values), by_re = optional("along_re", along_re, weights);
    const auto by_im = optional("along_im", along_im, weights);
    const auto by_gate = optional("along_gate", along_gate, n.models * n.in);
    const auto result = [](bool wanted, const Tensor& t) { return wanted ? data<T>(t) : nullptr; };
    const npu::NpuInputs<T> inputs{n.models,
                                   n.rows,
                                   n.in,
                                   n.out,
                                   input,
                                   n.shared_x,
                                   re,
                                   pointer(im),
                                   pointer(relevance),
                                   npu::checked_eps<T>(op, eps)};
    npu::kernels<T>().npu_second(
        {inputs, needs == 1 ? nullptr : static_cast<const T*>(upstream), output, turned, straight_through,
         pointer(by_x), pointer(by_re), pointer(by_im), pointer(by_gate), result(needs & 1, of_grad_y),
         result(needs & 2, of_x), result(needs & 4, of_re), result(needs_im, of_im), result(needs_gate, of_gate)},
        npu::second_threads(n.models, n.rows, n.in, n.out));
  });
  if (needs & 2 && n.adds_models()) of_x = npu::sum_models(of_x);
  return {of_grad_y, of_x, of_re, of_im, of_gate};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(npu_kernels, CPU, library) {
  library.impl("npu_second", &npu::naming_memory<TORCH_BOX(&npu_second), StableIValue>);
}
