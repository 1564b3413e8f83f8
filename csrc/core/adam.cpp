// A step of Adam (Kingma, Ba 2015) in place, with torch.optim.Adam's names and rounding up to the order of operations.
#include <cmath>
#include <cstring>

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
  // Of whole registers; pointers that do not overlap.
  constexpr int kBlock = 16;
  const auto update = [&](T* __restrict p, T* __restrict m, T* __restrict v, const T* __restrict grad) {
    for (int n = 0; n < kBlock; ++n) {
      const T g = sign * grad[n] + (decays ? l2 * p[n] : T(0));  // 0 times an infinite parameter is no decay
      m[n] = later ? g - (g - m[n]) * beta1 : m[n] + (g - m[n]) * rest1;
      v[n] = beta2 * v[n] + rest2 * g * g;
      p[n] = kept * p[n] - size * m[n] / (std::sqrt(v[n]) * scale + eps);
    }
  };
  constexpr int64_t kChunk = 4096;
  parallel.over(ceil_div(step.count, kChunk), [&](int64_t begin, int64_t end) {
    T *const p = step.parameter, *const m = step.exp_avg, *const v = step.exp_avg_sq;
    const int64_t last = min(step.count, end * kChunk);
    int64_t n = begin * kChunk;
    for (; n + kBlock <= last; n += kBlock) update(p + n, m + n, v + n, step.grad + n);
    const size_t rest = size_t(last - n) * sizeof(T);
    if (rest == 0) return;
    T some[4][kBlock] = {};  // the last ones, where single elements would cost as much as registers
    std::memcpy(some[0], p + n, rest), std::memcpy(some[1], m + n, rest), std::memcpy(some[2], v + n, rest);
    std::memcpy(some[3], step.grad + n, rest);
    update(some[0], some[1], some[2], some[3]);
    std::memcpy(p + n, some[0], rest), std::memcpy(m + n, some[1], rest), std::memcpy(v + n, some[2], rest);
  });
}

template void adam<float>(const AdamStep<float>&, const Parallel&);
template void adam<double>(const AdamStep<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
