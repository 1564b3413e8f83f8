// Torch's own products of rows and a layer's matrix, into tensors that are there: for layers of `by_matrix`
// (layers/nau.h) whose kernels do not take the call. x [(K,) B..., I], or [B, I] for all models; matrix [(K,) O, I]; y
// [(K,) B..., O].
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "sizes.h"

namespace npu_fast_path {

// Rows [B, I], or [K, B, I] beside a matrix of models.
inline Tensor as_rows(const Tensor& x, const Sizes& n, bool models) {
  const int64_t columns = x.size(-1);
  if (!models) return x.view({n.rows, columns});
  const int64_t own = n.shared_x && x.dim() == 2 ? 1 : n.models;
  return x.view({own, n.rows, columns}).expand({n.models, n.rows, columns});
}

// y = x matrix'
inline void multiply(const Tensor& x, const Tensor& matrix, const Sizes& n, const Tensor& y) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const bool models = matrix.dim() == 3;
  Tensor out = as_rows(y, n, models);
  if (models) at::bmm_out(out, as_rows(x, n, true), matrix.transpose(1, 2));
  else at::mm_out(out, as_rows(x, n, false), matrix.t());
}

// grad_x = grad_y matrix
inline void multiply_back(const Tensor& grad_y, const Tensor& matrix, const Sizes& n, const Tensor& grad_x) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const bool models = matrix.dim() == 3;
  Tensor out = models ? grad_x.view({n.models, n.rows, n.in}) : grad_x.view({n.rows, n.in});
  if (models) at::bmm_out(out, as_rows(grad_y, n, true), matrix);
  else at::mm_out(out, as_rows(grad_y, n, false), matrix);
}

// grad_matrix = grad_y' x
inline void multiply_rows(const Tensor& grad_y, const Tensor& x, const Sizes& n, const Tensor& grad_matrix) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  Tensor out = grad_matrix;
  if (grad_matrix.dim() == 3) at::bmm_out(out, as_rows(grad_y, n, true).transpose(1, 2), as_rows(x, n, true));
  else at::mm_out(out, as_rows(grad_y, n, false).t(), as_rows(x, n, false));
}

// For what is done once for each element of a matrix: some twenty multiply-adds.
inline npu::TorchThreads threads_for_matrix(const Sizes& n) {
  return npu::torch_threads(20.0 * double(n.models) * double(n.in) * double(n.out));
}

}  // namespace npu_fast_path
