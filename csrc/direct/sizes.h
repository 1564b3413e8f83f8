// What the direct layers share: rows of x, weights of models.
#pragma once

#include "common.h"

namespace npu_direct {

struct Sizes {
  int64_t models, rows, in, out;
  bool shared_x;
};

// Whether x and a weight fit together, and the sizes of the call.
inline bool fit(const Tensor& x, const Tensor& weight, Sizes& n) {
  const auto rows = x.sizes(), shape = weight.sizes();
  const size_t dims = shape.size();
  if ((dims != 2 && dims != 3) || rows.empty() || x.numel() == 0 || weight.numel() == 0) return false;
  n.models = dims == 3 ? shape[0] : 1;
  n.out = shape[dims - 2];
  n.in = shape[dims - 1];
  n.shared_x = dims == 3 && rows.size() == 2;
  if (rows.back() != n.in || (dims == 3 && !n.shared_x && (rows.size() < 3 || rows[0] != n.models))) return false;
  n.rows = x.numel() / n.in / (n.shared_x ? 1 : n.models);
  return true;
}

// Whether the other operands of an NPU belong to its first weight.
inline bool belong(const Tensor& weight_im, const Tensor& gate, const Tensor& weight_re, const Sizes& n) {
  if (weight_im.defined() && weight_im.sizes() != weight_re.sizes()) return false;
  if (!gate.defined()) return true;
  const auto gates = gate.sizes();
  return gates.size() == size_t(weight_re.dim() - 1) && gates.back() == n.in &&
         (gates.size() == 1 || gates[0] == n.models);
}

inline Tensor empty_result(const Tensor& x, const Sizes& n) {
  c10::SmallVector<int64_t, 5> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = n.out;
  if (n.shared_x) shape.insert(shape.begin(), n.models);
  return at::empty(shape, x.options());
}

inline npu::TorchThreads threads_for(const Sizes& n) { return npu::torch_threads(n.models, n.rows, n.in, n.out); }

// Gradients of x and of parameters, uninitialised where `needs` has their bit. A shared x gets one gradient per model,
// which add_models adds up.
inline variable_list empty_gradients(const variable_list& inputs, const Sizes& n, int64_t needs) {
  variable_list grads(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if (needs >> i & 1) grads[i] = at::empty(inputs[i].sizes(), inputs[0].options());
  if (needs & 1 && n.shared_x && n.models != 1) grads[0] = at::empty({n.models, n.rows, n.in}, inputs[0].options());
  return grads;
}
inline void add_models(variable_list& grads, const Sizes& n) {
  if (grads[0].defined() && n.shared_x && n.models != 1) grads[0] = grads[0].sum(0);
}

}  // namespace npu_direct
