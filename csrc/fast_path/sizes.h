// What the layers of the fast path share: rows of x, weights of models.
#pragma once

#include "common.h"

namespace npu_fast_path {

using npu::Sizes;

// Whether x and a weight fit together, and the sizes of the call; twice: the weight's last dimension is 2 I.
inline bool fit(const Tensor& x, const Tensor& weight, bool twice, Sizes& n) {
  const auto rows = x.sizes(), shape = weight.sizes();
  const size_t dims = shape.size();
  if ((dims != 2 && dims != 3) || rows.empty() || x.numel() == 0 || weight.numel() == 0) return false;
  n.models = dims == 3 ? shape[0] : 1;
  n.out = shape[dims - 2];
  n.in = shape[dims - 1];
  if (twice) {
    if (n.in % 2 != 0) return false;
    n.in /= 2;
  }
  n.shared_x = dims == 3 && rows.size() == 2;
  if (rows.back() != n.in || (dims == 3 && !n.shared_x && (rows.size() < 3 || rows[0] != n.models))) return false;
  n.rows = x.numel() / n.in / (n.shared_x ? 1 : n.models);
  return true;
}

inline Tensor empty_result(const Tensor& x, const Sizes& n) {
  c10::SmallVector<int64_t, 5> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = n.out;
  if (n.shared_x) shape.insert(shape.begin(), n.models);
  return uninitialised(shape, x.options());
}

template <typename L>
npu::TorchThreads threads_for(const Sizes& n) {
  return npu::torch_threads(n.models, n.rows, npu::factors<L>(n), n.out);
}

// Gradients of x and of parameters, uninitialised where `needs` has their bit. A shared x gets one gradient per model,
// which add_models adds up.
inline variable_list empty_gradients(const variable_list& inputs, const Sizes& n, int64_t needs) {
  variable_list grads(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if (needs >> i & 1) grads[i] = uninitialised(inputs[i].sizes(), inputs[0].options());
  if (needs & 1 && n.shared_x && n.models != 1) grads[0] = uninitialised({n.models, n.rows, n.in}, inputs[0].options());
  return grads;
}
inline void add_models(variable_list& grads, const Sizes& n) {
  if (grads[0].defined() && n.shared_x && n.models != 1) grads[0] = grads[0].sum(0);
}

}  // namespace npu_fast_path
