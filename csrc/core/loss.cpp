// Mean squared error of K models, and its gradient:
//
//   loss_k = 1 / N sum_n (y_kn - t_n)^2    dy_kn = 2 / N grad_k (y_kn - t_n)
#include "api.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {
namespace {

constexpr int64_t kChunk = 2048;  // elements whose squares one register adds up; the chunks' sums are added in double

// The squares of a chunk, in four registers so that the additions do not wait for each other.
template <typename T>
double squares(const T* y, const T* target, int64_t count) {
  using S = Simd<T>;
  constexpr int W = S::width;
  typename S::Reg sum[4] = {};
  for (int64_t n = 0; n < count; n += 4 * W) {
    for (int r = 0; r < 4; ++r) {
      const int lanes = int(max<int64_t>(0, min<int64_t>(W, count - n - r * W)));
      if (lanes == 0) break;
      const typename S::Reg d = S::load_first(y + n + r * W, lanes) - S::load_first(target + n + r * W, lanes);
      sum[r] = S::fma(d, d, sum[r]);
    }
  }
  T lanes[W];
  S::store(lanes, (sum[0] + sum[1]) + (sum[2] + sum[3]));
  double total = 0;
  for (T lane : lanes) total += double(lane);
  return total;
}

}  // namespace

template <typename T>
void mse_forward(const MseForward<T>& f, const Parallel& parallel) {
  const MseInputs<T>& in = f.inputs;
  const int64_t chunks = ceil_div(in.count, kChunk);
  Scratch<double> sums(in.models * chunks);
  parallel.over(in.models * chunks, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / chunks, n = task % chunks * kChunk;
      sums[task] = squares<T>(in.y + model * in.count + n, in.target + (in.shared_target ? 0 : model * in.count) + n,
                              min(kChunk, in.count - n));
    }
  });
  for (int64_t model = 0; model < in.models; ++model) {
    double total = 0;
    for (int64_t c = 0; c < chunks; ++c) total += sums[model * chunks + c];
    f.loss[model] = T(total / double(in.count));
  }
}

template <typename T>
void mse_backward(const MseBackward<T>& f, const Parallel& parallel) {
  using S = Simd<T>;
  const MseInputs<T>& in = f.inputs;
  const int64_t chunks = ceil_div(in.count, kChunk);
  parallel.over(in.models * chunks, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / chunks, first = task % chunks * kChunk;
      const typename S::Reg scale = S::set1(T(2) / T(in.count) * f.grad_loss[model]);
      const T* target = in.target + (in.shared_target ? 0 : model * in.count);
      for (int64_t n = first; n < min(in.count, first + kChunk); n += S::width) {
        const int lanes = int(min<int64_t>(S::width, in.count - n));
        const typename S::Reg d = S::load_first(in.y + model * in.count + n, lanes) - S::load_first(target + n, lanes);
        S::store_first(f.grad_y + model * in.count + n, scale * d, lanes);
      }
    }
  });
}

template void mse_forward<float>(const MseForward<float>&, const Parallel&);
template void mse_forward<double>(const MseForward<double>&, const Parallel&);
template void mse_backward<float>(const MseBackward<float>&, const Parallel&);
template void mse_backward<double>(const MseBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
