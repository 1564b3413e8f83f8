// Training steps of a chain of layers, as many as wanted in one call (train.cpp makes an operator of it).
//
// A step: rows are gathered; forward of all layers; mean squared error; backward; the penalties' gradients are added;
// Adam or RMSProp; parameters are clamped into their intervals. The layers' arithmetic is that of their kernels.
//
// Models do not meet one another. So they go in blocks, and a block makes all steps of the call before the next one
// begins: its parameters and its rows stay in the cache, and threads that take different blocks meet once a call.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "layers.h"
#include "platform/threads.h"

namespace npu {
namespace training {

constexpr size_t kMaxOperands = 4;  // x and the weights of a layer
constexpr size_t kMaxOptions = 3;

// One call of a layer's kernels.
template <typename T>
struct Pass {
  Sizes n;
  std::array<const T*, kMaxOperands> operands;  // x and the weights
  std::array<double, kMaxOptions> options;
  T *y, *saved;
  const T* grad_y;
  std::array<T*, kMaxOperands> grads;  // of the operands; null: not wanted

  BackwardCall<T> backward(const void* const* saved_pointer) const {
    return {{n, operands.data(), options.data()}, grad_y, y, saved_pointer, grads.data()};
  }
};

// Rows of a step: of a block's models, or of all of them where they are shared.
template <typename T>
struct Rows {
  const T* first;
  int64_t next;  // elements from one model's rows to the next one's
};

// What the loop knows of a layer, made of its record.
template <typename T>
struct Kind {
  const char* name;
  size_t weights, options;  // how many
  const Weight* weight;
  const Option* option;
  bool saves;       // one tensor of y's shape
  int64_t factors;  // columns of a weight for each input
  void (*forward)(const Pass<T>&, const Parallel&);
  void (*backward)(const Pass<T>&, const Parallel&);
  // All of a step but the update; false: it is not for these sizes, and nothing was done.
  bool (*step)(const Pass<T>&, int64_t next_x, const Rows<T>& target, T* loss);
};

template <typename L, typename T>
Kind<T> kind_of() {
  static_assert(L::weights.size() < kMaxOperands && L::options.size() <= kMaxOptions && L::saved.size() <= 1);
  Kind<T> kind{L::name,
               L::weights.size(),
               L::options.size(),
               L::weights.data(),
               L::options.data(),
               L::saved.size() == 1,
               doubles_inputs<L>() ? 2 : 1,
               {},
               {},
               {}};
  kind.forward = [](const Pass<T>& p, const Parallel& parallel) {
    void* saved[1] = {p.saved};
    const ForwardCall<T> call{{p.n, p.operands.data(), p.options.data()}, p.y, saved};
    (kernels<T>().*L::template forward_kernel<T>)(L::forward(call), parallel);
  };
  kind.backward = [](const Pass<T>& p, const Parallel& parallel) {
    const void* saved[1] = {p.saved};
    (kernels<T>().*L::template backward_kernel<T>)(L::backward(p.backward(saved)), parallel);
  };
  kind.step = [](const Pass<T>& p, int64_t next_x, const Rows<T>& target, T* loss) {
    const void* saved[1] = {nullptr};
    return L::step(StepCall<T>{p.backward(saved), next_x, target.first, target.next, loss});
  };
  return kind;
}

// A plan names a kind by its index here.
template <typename T>
std::array<Kind<T>, 4> kinds() {
  return {kind_of<NpuLayer, T>(), kind_of<NmuLayer, T>(), kind_of<NmruLayer, T>(), kind_of<NauLayer, T>()};
}

// A plan names a penalty by its index here.
#define NPU_PENALTIES(X) X(kL1, "l1") X(kFrobenius, "frobenius") X(kMadsen, "madsen") X(kPaper, "paper")
#define NPU_PENALTY_KIND(kind, name) kind,
#define NPU_PENALTY_NAME(kind, name) name,
enum PenaltyKind { NPU_PENALTIES(NPU_PENALTY_KIND) };
constexpr const char* kPenaltyNames[] = {NPU_PENALTIES(NPU_PENALTY_NAME)};

struct Penalty {
  PenaltyKind kind;
  const double* beta;  // [steps]
};

struct RmsPropOptions {
  double alpha, eps, weight_decay, momentum;
  bool centered, maximize;
};

// The weights of one name of one layer, and what a step does with them.
template <typename T>
struct Parameter {
  int64_t size;  // of one model
  T* values;     // [K][size]
  bool trained;
  const double* rate;  // [steps]
  std::vector<Penalty> penalties;
  double low, high;         // the interval that it is clamped into, trained or not
  std::array<T*, 3> state;  // [K][size] each: exp_avg, exp_avg_sq; or square_avg, grad_avg, momentum_buffer
  double number;            // of the steps before
  AdamOptions adam;         // lr: in `rate`
  RmsPropOptions rmsprop;
};

template <typename T>
struct Layer {
  Kind<T> kind;
  int64_t in, out;
  std::array<int64_t, kMaxOperands> weights;  // which parameters; -1: the layer has none of this name
  std::array<double, kMaxOptions> options;
};

template <typename T>
struct Run {
  int64_t models, steps, batch;
  std::vector<Layer<T>> layers;
  std::vector<Parameter<T>> parameters;
  bool adam;
  const T *x, *y;   // [N, I] and [N, O], or with a leading K where they are not shared
  const T* weight;  // of the squared errors, as y; null: 1
  bool shared_x, shared_y;
  bool finite;          // an entry of a gradient that is not finite counts as 0
  int64_t count;        // N
  const int64_t* rows;  // [steps][batch], within N; null: batch is N and every step takes all rows
  // [steps]: the first of a step's rows if they follow one another, otherwise -1.
  std::vector<int64_t> starts;
  T* losses;              // [records][K]
  int64_t every, before;  // a loss is recorded where the number of the step from 0 is a multiple; steps before these
};

// ---- what happens to parameters ------------------------------------------------------------------------------------

template <typename T>
T sign(T v) {
  return T(v > 0) - T(v < 0);
}

// The derivative of min(|w|, |1 - s|), where s is |w| or w; as torch's: at equal distances the mean of both.
template <typename T>
T penalty_gradient(T w, bool madsen) {
  const T size = std::abs(w), s = madsen ? size : w, other = std::abs(1 - s);
  const T near = sign(w), far = near * sign(s - 1);
  return size < other ? near : (size > other ? far : (size == other ? (near + far) / 2 : size + other));  // nan stays
}

template <typename T>
void penalise(const Penalty& penalty, int64_t step, const T* values, int64_t models, int64_t size, T* grad) {
  const T beta = T(penalty.beta[step]);
  for (int64_t k = 0; k < models; ++k, values += size, grad += size) {
    if (penalty.kind == kL1) {
      for (int64_t n = 0; n < size; ++n) grad[n] += beta * sign(values[n]);
    } else if (penalty.kind == kFrobenius) {
      double squares = 0;
      for (int64_t n = 0; n < size; ++n) squares += double(values[n]) * double(values[n]);
      const T factor = squares == 0 ? T(0) : T(double(beta) / std::sqrt(squares));
      for (int64_t n = 0; n < size; ++n) grad[n] += factor * values[n];
    } else {
      for (int64_t n = 0; n < size; ++n) grad[n] += beta * penalty_gradient(values[n], penalty.kind == kMadsen);
    }
  }
}

inline bool bounded(double low, double high) { return low > -HUGE_VAL || high < HUGE_VAL; }

// nan stays nan
template <typename T>
void clamp(double lowest, double highest, int64_t count, T* values) {
  if (!bounded(lowest, highest)) return;
  const T low = T(lowest), high = T(highest);
  for (int64_t n = 0; n < count; ++n) values[n] = values[n] < low ? low : (values[n] > high ? high : values[n]);
}

// torch.optim.RMSprop's step, in its order of operations.
template <typename T>
void rmsprop(const RmsPropOptions& o, double lr, int64_t count, T* p, const T* grad, const std::array<T*, 3>& state) {
  const T alpha = T(o.alpha), rest = T(1 - o.alpha), eps = T(o.eps), decay = T(o.weight_decay), rate = T(lr);
  const T momentum = T(o.momentum);
  T *square = state[0], *mean = state[1], *velocity = state[2];
  for (int64_t n = 0; n < count; ++n) {
    const T g = (o.maximize ? -grad[n] : grad[n]) + (decay != 0 ? decay * p[n] : T(0));
    square[n] = alpha * square[n] + rest * g * g;
    T scale = square[n];
    if (o.centered) {
      mean[n] += rest * (g - mean[n]);
      scale = std::fma(-mean[n], mean[n], scale);  // as torch: the square of a finite mean may be too large
    }
    scale = std::sqrt(scale) + eps;
    if (momentum > 0) p[n] -= rate * (velocity[n] = momentum * velocity[n] + g / scale);
    else p[n] -= rate * (g / scale);
  }
}

// ---- weighted errors -----------------------------------------------------------------------------------------------

// The mean of weight * (y - target)^2 of each model; a target and a weight that are shared begin again for each.
template <typename T>
void weighted_losses(const MseInputs<T>& in, const T* weight, T* loss) {
  for (int64_t k = 0; k < in.models; ++k) {
    const T* y = in.y + k * in.count;
    const int64_t first = in.shared_target ? 0 : k * in.count;
    double sum = 0;
    for (int64_t n = 0; n < in.count; ++n) {
      const double error = double(y[n]) - double(in.target[first + n]);
      sum += double(weight[first + n]) * error * error;
    }
    loss[k] = T(sum / double(in.count));
  }
}

// grad *= weight
template <typename T>
void weigh(const MseInputs<T>& in, const T* weight, T* grad) {
  for (int64_t k = 0; k < in.models; ++k, grad += in.count) {
    for (int64_t n = 0; n < in.count; ++n) grad[n] *= weight[n];
    if (!in.shared_target) weight += in.count;
  }
}

// ---- rows -----------------------------------------------------------------------------------------------------------

template <int features, typename T>
void gather_rows_of(const T* from, const int64_t* rows, int64_t count, T* to) {
  for (int64_t n = 0; n < count; ++n, to += features)
    for (int f = 0; f < features; ++f) to[f] = from[rows[n] * features + f];
}

// Few features are a known number: a call to copy them would cost more than the copy.
template <typename T>
void gather_rows(const T* from, const int64_t* rows, int64_t count, int64_t features, T* to) {
  if (features == 1) return gather_rows_of<1>(from, rows, count, to);
  if (features == 2) return gather_rows_of<2>(from, rows, count, to);
  if (features == 4) return gather_rows_of<4>(from, rows, count, to);
  for (int64_t n = 0; n < count; ++n) std::copy_n(from + rows[n] * features, features, to + n * features);
}

// ---- the loop ------------------------------------------------------------------------------------------------------

// All steps of a block of models.
template <typename T>
class Block {
 public:
  Block(const Run<T>& run, int64_t models) : run_(run) {
    const int64_t rows = models * run.batch;
    int64_t widest = 0;
    for (const Layer<T>& layer : run.layers) {
      y_.push_back(reserve(rows * layer.out));
      saved_.push_back(layer.kind.saves ? reserve(rows * layer.out) : 0);
      widest = std::max(widest, layer.out);  // the first layer's x has no gradient
    }
    for (int64_t& grad : grad_rows_) grad = reserve(rows * widest);
    for (const Parameter<T>& parameter : run.parameters) grads_.push_back(reserve(models * parameter.size));
    ones_ = reserve(models);
    x_ = reserve(run.rows == nullptr ? 0 : (run.shared_x ? 1 : models) * run.batch * run.layers.front().in);
    const int64_t targets = run.rows == nullptr ? 0 : (run.shared_y ? 1 : models) * run.batch * run.layers.back().out;
    target_ = reserve(targets);
    weight_ = reserve(run.weight == nullptr ? 0 : targets);
    memory_ = std::make_unique<T[]>(size_t(size_ + kLine));
    begin_ = memory_.get() + (-uintptr_t(memory_.get()) / sizeof(T)) % kLine;
    std::fill_n(at(ones_), models, T(1));
    first_ = run.layers.size();
    for (size_t l = run.layers.size(); l-- > 0;)
      for (size_t w = 0; w < run.layers[l].kind.weights; ++w)
        if (trains(run.layers[l], w)) first_ = l;
  }

  // Whether the threads share the kernels of a step; otherwise they have blocks of their own.
  void run(int64_t first, int64_t end, bool shares) {
    model_ = first, models_ = end - first, shares_ = shares;
    for (int64_t step = 0; step < run_.steps; ++step) this->step(step);
  }

 private:
  void step(int64_t step) {
    const int64_t number = run_.before + step;
    const bool records = number % run_.every == 0;
    T* losses = records ? run_.losses + number / run_.every * run_.models + model_ : nullptr;
    if (!at_once(step, losses)) one_by_one(step, losses);
    for (size_t n = 0; n < run_.parameters.size(); ++n) update(run_.parameters[n], at(grads_[n]), step);
  }

  // A single layer's losses and gradients by one kernel, if it has one.
  bool at_once(int64_t step, T* losses) {
    if (run_.layers.size() > 1 || first_ > 0 || run_.weight != nullptr) return false;
    const Rows<T> x = rows(run_.x, run_.shared_x, run_.layers[0].in, step, at(x_));
    const Rows<T> target = rows(run_.y, run_.shared_y, run_.layers[0].out, step, at(target_));
    Pass<T> p = pass(0, x.first, x.first);
    p.y = p.saved = nullptr;
    want_gradients(0, &p);
    return run_.layers[0].kind.step(p, x.next, target, losses);
  }

  void one_by_one(int64_t step, T* losses) {
    const T* x = gathered(run_.x, run_.shared_x, run_.layers.front().in, step, at(x_));
    const T* target = gathered(run_.y, run_.shared_y, run_.layers.back().out, step, at(target_));
    const T* weight = gathered(run_.weight, run_.shared_y, run_.layers.back().out, step, at(weight_));
    const T* input = x;
    for (size_t l = 0; l < run_.layers.size(); ++l) {
      call(run_.layers[l], run_.layers[l].kind.forward, pass(l, input, x));
      input = at(y_[l]);
    }
    const MseInputs<T> error{models_, run_.batch * run_.layers.back().out, input, target, run_.shared_y};
    const Parallel serial;
    if (losses != nullptr) {
      if (weight == nullptr) kernels<T>().mse_forward({error, losses}, serial);
      else weighted_losses(error, weight, losses);
    }
    kernels<T>().mse_backward({error, at(ones_), at(grad_rows_[0])}, serial);
    if (weight != nullptr) weigh(error, weight, at(grad_rows_[0]));
    for (size_t l = run_.layers.size(); l-- > first_;) {
      const size_t side = (run_.layers.size() - 1 - l) % 2;
      Pass<T> p = pass(l, l == 0 ? x : at(y_[l - 1]), x);
      p.grad_y = at(grad_rows_[side]);
      p.grads[0] = l == first_ ? nullptr : at(grad_rows_[1 - side]);
      want_gradients(l, &p);
      call(run_.layers[l], run_.layers[l].kind.backward, p);
    }
  }

  // Of the layer's trained weights.
  void want_gradients(size_t l, Pass<T>* p) const {
    for (size_t w = 0; w < run_.layers[l].kind.weights; ++w)
      p->grads[1 + w] = trains(run_.layers[l], w) ? at(grads_[size_t(run_.layers[l].weights[w])]) : nullptr;
  }

  Pass<T> pass(size_t l, const T* input, const T* x) const {
    const Layer<T>& layer = run_.layers[l];
    Pass<T> p{{models_, run_.batch, layer.in, layer.out, input == x && run_.shared_x},
              {input},
              layer.options,
              at(y_[l]),
              at(saved_[l]),
              nullptr,
              {}};
    for (size_t w = 0; w < layer.kind.weights; ++w) {
      if (layer.weights[w] < 0) continue;
      const Parameter<T>& parameter = run_.parameters[size_t(layer.weights[w])];
      p.operands[1 + w] = parameter.values + model_ * parameter.size;
    }
    return p;
  }

  template <typename F>
  void call(const Layer<T>& layer, F kernel, const Pass<T>& p) const {
    if (shares_) kernel(p, torch_threads(models_, run_.batch, layer.kind.factors * layer.in, layer.out));
    else kernel(p, Parallel());
  }

  bool trains(const Layer<T>& layer, size_t w) const {
    return layer.weights[w] >= 0 && run_.parameters[size_t(layer.weights[w])].trained;
  }

  // The step's rows of this block's models, or of all models; copied to `to` where they do not follow one another.
  Rows<T> rows(const T* from, bool shared, int64_t features, int64_t step, T* to) const {
    const int64_t models = shared ? 1 : models_, all = run_.count * features, size = run_.batch * features;
    if (!shared) from += model_ * all;
    const int64_t start = run_.rows == nullptr ? 0 : run_.starts[size_t(step)];
    if (start >= 0) return {from + start * features, shared ? 0 : all};
    for (int64_t k = 0; k < models; ++k)
      gather_rows(from + k * all, run_.rows + step * run_.batch, run_.batch, features, to + k * size);
    return {to, shared ? 0 : size};
  }

  // The same, the models' rows one after the other; null if there are none.
  const T* gathered(const T* from, bool shared, int64_t features, int64_t step, T* to) const {
    if (from == nullptr) return nullptr;
    const int64_t size = run_.batch * features;
    const Rows<T> found = rows(from, shared, features, step, to);
    if (found.next == 0 || found.next == size || models_ == 1) return found.first;
    for (int64_t k = 0; k < models_; ++k) std::copy_n(found.first + k * found.next, size, to + k * size);
    return to;
  }

  void update(const Parameter<T>& p, T* grad, int64_t step) const {
    T* values = p.values + model_ * p.size;
    const int64_t count = models_ * p.size;
    if (!p.trained) return clamp(p.low, p.high, count, values);
    std::array<T*, 3> state = p.state;
    for (T*& s : state) s = s == nullptr ? nullptr : s + model_ * p.size;
    for (const Penalty& penalty : p.penalties) penalise(penalty, step, values, models_, p.size, grad);
    for (int64_t n = 0; run_.finite && n < count; ++n)
      if (!std::isfinite(grad[n])) grad[n] = 0;
    if (run_.adam) {
      AdamStep<T> adam{p.adam, count, values, grad, state[0], state[1], p.number + double(step) + 1};
      adam.lr = p.rate[step];
      kernels<T>().adam(adam, shares_ ? torch_threads(8.0 * double(count)) : Parallel());
    } else {
      rmsprop(p.rmsprop, p.rate[step], count, values, grad, state);
    }
    clamp(p.low, p.high, count, values);
  }

  // Places in one block of memory, each on a cache line of its own.
  static constexpr int64_t kLine = 64 / sizeof(T);
  int64_t reserve(int64_t count) {
    const int64_t place = size_;
    size_ += (count + kLine - 1) / kLine * kLine;
    return place;
  }
  T* at(int64_t place) const { return begin_ + place; }

  const Run<T>& run_;
  int64_t model_ = 0, models_ = 0, size_ = 0;
  bool shares_ = false;
  size_t first_;  // the first layer with a trained parameter
  std::vector<int64_t> y_, saved_, grads_;
  std::array<int64_t, 2> grad_rows_;
  int64_t ones_, x_, target_, weight_;
  std::unique_ptr<T[]> memory_;
  T* begin_;
};

// Models of a block: few enough for the second-level cache, enough that a kernel's call costs little, and as many in
// each block. A model's numbers do not depend on it.
template <typename T>
int64_t models_of_block(const Run<T>& run, int64_t threads) {
  int64_t features = 0;
  for (const Layer<T>& layer : run.layers) features += layer.in + 3 * layer.out;
  const int64_t bytes = run.batch * features * int64_t(sizeof(T));
  const int64_t most = std::max<int64_t>(1, std::min(int64_t(16), (int64_t(1) << 17) / bytes));
  const int64_t rounds = (run.models + most * threads - 1) / (most * threads);
  return (run.models + rounds * threads - 1) / (rounds * threads);
}

template <typename T>
void run(const Run<T>& run) {
  double work = 0;  // of a step of one model
  for (const Layer<T>& layer : run.layers) {
    const double in = double(layer.kind.factors * layer.in), out = double(layer.out);
    work += 3 * double(run.batch) * (in * out + 40 * (in + out));
  }
  int64_t of_block, blocks;
  bool shares;
  const auto range = [&](Block<T>& block, int64_t begin, int64_t end, bool shares) {
    for (int64_t n = begin; n < end; ++n) block.run(n * of_block, std::min((n + 1) * of_block, run.models), shares);
  };
  {
    const TorchThreads threads(work * double(run.models) * double(run.steps));
    of_block = models_of_block(run, threads.threads);
    blocks = (run.models + of_block - 1) / of_block;
    shares = threads.threads > 1;
    if (blocks > 1 && (blocks >= threads.threads || work * double(of_block) < 1e6)) {
      threads.over(blocks, [&](int64_t begin, int64_t end) {
        Block<T> block(run, of_block);
        range(block, begin, end, false);
      });
      return;
    }
  }
  Block<T> block(run, of_block);
  range(block, 0, blocks, shares);
}

}  // namespace training
}  // namespace npu
