// A step of Adam (Kingma, Ba 2015) in place, with torch.optim.Adam's names and rounding up to the order of operations.
#include <cmath>

#include "api.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
void adam(const AdamStep<T>& step, const Parallel& parallel) {
  const double correction1 = 1 - std::pow(step.beta1, step.number), correction2 = 1 - std::pow(step.beta2, step.number);
  const T size = T(step.lr / correction1), scale = T(1 / std::sqrt(correction2));
  const T rest1 = T(1 - step.beta1), beta1 = 1 - rest1, beta2 = T(step.beta2), rest2 = T(1 - step.beta2),
          eps = T(step.eps);
  const T sign = step.maximize ? T(-1) : T(1);
  const T l2 = step.decoupled ? T(0) : T(step.weight_decay);
  const bool decays = l2 != 0, later = rest1 >= T(0.5);  // as torch's lerp, exact at beta1 = 0
  const T kept = step.decoupled ? T(1 - step.lr * step.weight_decay) : T(1);
  constexpr int64_t kChunk = 4096;
  parallel.over(ceil_div(step.count, kChunk), [&](int64_t begin, int64_t end) {
    // Local pointers, for the compiler to see that nothing overlaps.
    T* __restrict p = step.parameter, * __restrict m = step.exp_avg, * __restrict v = step.exp_avg_sq;
    const T* __restrict grad = step.grad;
    for (int64_t n = begin * kChunk; n < least(step.count, end * kChunk); ++n) {
      const T g = sign * grad[n] + (decays ? l2 * p[n] : T(0));  // 0 times an infinite parameter is no decay
      m[n] = later ? g - (g - m[n]) * beta1 : m[n] + (g - m[n]) * rest1;
      v[n] = beta2 * v[n] + rest2 * g * g;
      p[n] = kept * p[n] - size * m[n] / (std::sqrt(v[n]) * scale + eps);
    }
  });
}

template void adam<float>(const AdamStep<float>&, const Parallel&);
template void adam<double>(const AdamStep<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
