// Neural Accumulator (Trask et al. 2018), forward and backward: a NAU of W = tanh(weight) sigmoid(mask).
#include "layers/nac.h"
#include "api.h"
#include "nac_weights.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
void nau_forward(const NauForward<T>&, const Parallel&);
template <typename T>
void nau_backward(const NauBackward<T>&, const Parallel&);

namespace {

template <typename T>
NauInputs<T> with_matrix(const NacInputs<T>& in, const T* product) {
  return {in.models, in.rows, in.in, in.out, in.x, in.shared_x, product, false};
}

}  // namespace

template <typename T>
void nac_forward(const NacForward<T>& f, const Parallel& parallel) {
  const NacInputs<T>& in = f.inputs;
  const int64_t count = in.models * in.out * in.in;
  const Scratch<T> own(f.product != nullptr ? 0 : count);
  T* const product = f.product != nullptr ? f.product : static_cast<T*>(own);
  nac_weights<T>(in.weight, in.mask, count, nullptr, f.parts, product, parallel);
  if (f.y != nullptr) nau_forward<T>({with_matrix<T>(in, product), f.y}, parallel);
}

template <typename T>
void nac_backward(const NacBackward<T>& f, const Parallel& parallel) {
  using S = Simd<T>;
  constexpr int64_t kChunk = 1024;
  const NacInputs<T>& in = f.inputs;
  const int64_t count = in.models * in.out * in.in;
  const bool wanted = f.grad_weight != nullptr || f.grad_mask != nullptr;
  const T* grad = f.grad_product;
  const Scratch<T> own(grad == nullptr && wanted ? count : 0);
  if (grad == nullptr) {
    T* const sums = wanted ? static_cast<T*>(own) : nullptr;
    nau_backward<T>({with_matrix<T>(in, f.product), f.grad_y, f.grad_x, sums}, parallel);
    grad = sums;
  }
  if (!wanted) return;
  parallel.over(ceil_div(count, kChunk), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kChunk; n < min(count, end * kChunk); n += S::width) {
      const int lanes = int(min<int64_t>(S::width, count - n));
      nac_gradients<T>(S::load_first(grad + n, lanes), f.parts, count, n, lanes, f.grad_weight, f.grad_mask);
    }
  });
}

template void nac_forward<float>(const NacForward<float>&, const Parallel&);
template void nac_forward<double>(const NacForward<double>&, const Parallel&);
template void nac_backward<float>(const NacBackward<float>&, const Parallel&);
template void nac_backward<double>(const NacBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
