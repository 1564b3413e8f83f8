// The operators of the ODE solver's adaptive steps: checks, allocation, registration. How many steps there are is known
// only afterwards, so that what the forward keeps is collected in memory that grows.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "layers.h"
#include "operands.h"
#include "platform/threads.h"

namespace {

using npu::check;
using npu::data;
using npu::empty;
using npu::Optional;
using npu::ScalarType;
using npu::shape_of;
using npu::Tensor;

// An operand as the core reads it.
template <typename V>
const V* read(const char* name, const Tensor& t, ScalarType dtype, int64_t count) {
  check(t.scalar_type() == dtype && t.is_cpu() && t.is_contiguous() && t.numel() == count, "ode_adaptive: ", name,
        " must be contiguous, on the CPU, of the operator's dtype and of ", count, " elements, got shape ",
        shape_of(t));
  npu::check_storage("ode_adaptive", name, t, sizeof(V));
  return static_cast<const V*>(t.const_data_ptr());
}

template <typename T>
constexpr ScalarType kType = std::is_same<T, float>::value ? ScalarType::Float : ScalarType::Double;

// The operands of both operators: u0 of shape [K, B, D], weights with models.
template <typename T>
struct Operands {
  npu::OdeInputs<T> inputs{};
  npu::OdePair pair;
  const double* t;
  int64_t count, rows;

  Operands(const Tensor& u0, const Tensor& weight_re, const Optional& weight_im, const Optional& gate,
           const Tensor& weight, const Tensor& t, const std::vector<double>& pair, double eps, bool clip)
      : pair{pair.data()}, t(read<double>("t", t, ScalarType::Double, t.numel())), count(t.numel()) {
    check(weight_re.dim() == 3 && u0.dim() == 3 && u0.size(0) == weight_re.size(0) && u0.size(2) == weight_re.size(2),
          "ode_adaptive: u0 and weight_re must have shapes (K, B, D) and (K, h, D), got ", shape_of(u0), " and ",
          shape_of(weight_re));
    check(count > 1, "ode_adaptive: t must have two times or more, got shape ", shape_of(t));
    check(pair.size() == size_t(npu::OdePair::kNumbers), "ode_adaptive: pair must have ", npu::OdePair::kNumbers,
          " numbers, got ", pair.size());
    inputs.models = weight_re.size(0);
    inputs.starts = u0.size(1);
    inputs.features = weight_re.size(2);
    inputs.hidden = weight_re.size(1);
    // More than the bytes of all that is allocated. A dimension of size 0 leaves the others without memory, so without
    // a bound.
    npu::product("ode_adaptive", inputs.models, inputs.starts, count, inputs.features, 1 << 14);
    npu::product("ode_adaptive", inputs.models, inputs.starts, inputs.features, inputs.hidden, 1 << 10);
    rows = inputs.models * inputs.starts;
    const int64_t matrix = weight_re.numel();
    inputs.weight_re = read<T>("weight_re", weight_re, kType<T>, matrix);
    if (weight_im) inputs.weight_im = read<T>("weight_im", *weight_im, kType<T>, matrix);
    if (gate) inputs.gate = read<T>("gate", *gate, kType<T>, inputs.models * inputs.features);
    inputs.weight = read<T>("weight", weight, kType<T>, matrix);
    inputs.clip = clip;
    inputs.eps = npu::checked_eps<T>("ode_adaptive", eps);
  }
};

// What the trajectories keep; frees it.
template <typename T>
struct AllSaved : std::vector<npu::OdeSaved<T>> {
  explicit AllSaved(int64_t rows) : std::vector<npu::OdeSaved<T>>(size_t(rows), npu::OdeSaved<T>{}) {}
  AllSaved(const AllSaved&) = delete;
  ~AllSaved() {
    for (npu::OdeSaved<T>& saved : *this) {
      std::free(saved.times);
      std::free(saved.states);
    }
  }
};

constexpr int64_t kCounts = 5;  // of a trajectory

// A guess of the steps, where there is none: what decides whether threads are worth their start.
constexpr int64_t kSteps = 40;

npu::TorchThreads threads(int64_t rows, int64_t steps, int64_t features, int64_t hidden) {
  return npu::ode_threads(1, steps * rows * npu::OdePair::kStages, features, hidden);
}

template <typename T>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward(const Tensor& u0, const Operands<T>& n, double rtol,
                                                                   double atol, int64_t max_steps, int64_t max_at_bound,
                                                                   int64_t every) {
  const int64_t models = n.inputs.models, starts = n.inputs.starts, features = n.inputs.features;
  Tensor path = empty(u0, {models, starts, n.count, features});
  Tensor last = empty(u0, {models, starts, features});
  Tensor counts = empty(u0, {models, starts, kCounts}, aoti_torch_dtype_int64());
  Tensor clock = empty(u0, {models, starts, 3}, aoti_torch_dtype_float64());
  AllSaved<T> saved(every > 0 ? n.rows : 0);
  npu::kernels<T>().ode_adaptive_forward(
      {n.inputs, n.pair, read<T>("u0", u0, kType<T>, n.rows * features), n.t, n.count, rtol, atol, max_steps,
       max_at_bound, every, data<T>(path), data<T>(last), data<int64_t>(counts), data<double>(clock),
       every > 0 ? saved.data() : nullptr},
      threads(n.rows, kSteps, features, n.inputs.hidden));

  const int64_t* found = data<int64_t>(counts);
  int64_t steps = 0, states = 0;
  for (int64_t row = 0; every > 0 && row < n.rows; ++row) {
    steps += found[kCounts * row];
    states += found[kCounts * row] / every + 1;
  }
  const int64_t width = n.pair.saved() * features;
  Tensor times = empty(u0, {steps}, aoti_torch_dtype_float64()), nodes = empty(u0, {states, width});
  double* time = data<double>(times);
  T* node = data<T>(nodes);
  for (int64_t row = 0; every > 0 && row < n.rows; ++row) {
    const int64_t count = found[kCounts * row], size = (count / every + 1) * width;
    if (count > 0) std::memcpy(time, saved[size_t(row)].times, size_t(count) * sizeof(double));
    std::memcpy(node, saved[size_t(row)].states, size_t(size) * sizeof(T));
    time += count;
    node += size;
  }
  return {path, last, counts, clock, times, nodes};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> ode_adaptive_forward(
    const Tensor& u0, const Tensor& weight_re, Optional weight_im, Optional gate, const Tensor& weight, const Tensor& t,
    std::vector<double> pair, double rtol, double atol, int64_t max_steps, int64_t max_at_bound, double eps, bool clip,
    int64_t every) {
  const auto as = [&](auto zero) {
    using T = decltype(zero);
    const Operands<T> operands(u0, weight_re, weight_im, gate, weight, t, pair, eps, clip);
    return npu::naming_memory([&] { return forward<T>(u0, operands, rtol, atol, max_steps, max_at_bound, every); });
  };
  return u0.scalar_type() == ScalarType::Float ? as(float{}) : as(double{});
}

template <typename T>
std::vector<Tensor> backward(const Tensor& path, const Tensor& grad_path, const Operands<T>& n, const Tensor& counts,
                             const Tensor& times, const Tensor& states, const std::array<Optional, 5>& like,
                             double rtol, double atol, int64_t every, bool straight_through, int64_t needs) {
  const int64_t features = n.inputs.features, size = n.rows * n.count * features;
  const int64_t* found = read<int64_t>("counts", counts, ScalarType::Long, kCounts * n.rows);
  std::vector<int64_t> steps_at{0}, states_at{0};
  int64_t longest = 0;
  for (int64_t row = 0; row < n.rows; ++row) {
    // No more than there are, so that the sum of many does not overflow.
    const int64_t steps = found[kCounts * row];
    check(steps >= 0 && steps <= times.numel(), "ode_adaptive: counts must not be negative, nor above ", times.numel(),
          ", the number of times, got ", steps);
    steps_at.push_back(steps_at.back() + steps);
    states_at.push_back(states_at.back() + steps / every + 1);
    longest = std::max(longest, steps);
  }
  // The core reserves memory for so many states: no more than a trajectory has.
  every = std::min(every, longest + 1);
  npu::product("ode_adaptive", every, features, 1 << 13);
  std::vector<Tensor> grads;
  for (size_t i = 0; i < like.size(); ++i) {
    const bool wanted = like[i] && needs >> i & 1;
    std::vector<int64_t> shape{0};
    if (wanted) shape.assign(like[i]->sizes().begin(), like[i]->sizes().end());
    grads.push_back(empty(grad_path, shape));
  }
  const bool of_t = needs >> 5 & 1;
  grads.push_back(empty(grad_path, {of_t ? n.rows : 0, n.count}, aoti_torch_dtype_float64()));
  const auto into = [&](size_t i) { return like[i] && needs >> i & 1 ? data<T>(grads[i]) : nullptr; };
  const npu::OdeBackward<T> gradients{n.inputs, nullptr, nullptr, nullptr, nullptr, straight_through,
                                      into(0),  into(1), into(2), into(3), into(4)};
  npu::kernels<T>().ode_adaptive_backward(
      {gradients, n.pair, rtol, atol, n.pair.implicit() ? read<T>("path", path, kType<T>, size) : nullptr,
       read<T>("grad_path", grad_path, kType<T>, size), n.t, n.count, every,
       read<double>("times", times, ScalarType::Double, steps_at.back()),
       read<T>("states", states, kType<T>, states_at.back() * n.pair.saved() * features), steps_at.data(),
       states_at.data(), of_t ? data<double>(grads[5]) : nullptr},
      threads(1, 2 * steps_at.back(), features, n.inputs.hidden));
  return grads;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> ode_adaptive_backward(
    const Tensor& path, const Tensor& grad_path, const Tensor& u0, const Tensor& weight_re, Optional weight_im,
    Optional gate, const Tensor& weight, const Tensor& t, const Tensor& counts, const Tensor& times,
    const Tensor& states, std::vector<double> pair, double rtol, double atol, double eps, bool clip, int64_t every,
    bool straight_through, int64_t needs) {
  const auto as = [&](auto zero) {
    using T = decltype(zero);
    const Operands<T> n(u0, weight_re, weight_im, gate, weight, t, pair, eps, clip);
    check(every > 0, "ode_adaptive: every must be positive, got ", every);
    const std::array<Optional, 5> like{u0, weight_re, weight_im, gate, weight};
    const auto call = [&] {
      return backward<T>(path, grad_path, n, counts, times, states, like, rtol, atol, every, straight_through, needs);
    };
    const std::vector<Tensor> grads = npu::naming_memory(call);
    return std::tuple{grads[0], grads[1], grads[2], grads[3], grads[4], grads[5]};
  };
  return u0.scalar_type() == ScalarType::Float ? as(float{}) : as(double{});
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(npu_kernels, CPU, library) {
  library.impl("ode_adaptive_forward", TORCH_BOX(&ode_adaptive_forward));
  library.impl("ode_adaptive_backward", TORCH_BOX(&ode_adaptive_backward));
}
