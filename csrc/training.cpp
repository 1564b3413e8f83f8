// The operator `train`: training steps of a chain of layers (training.h). Its arguments are a plan that
// npu_kernels/training/plan.py writes; here it is read and checked, so that a wrong one is an error and no wrong
// access.
#include "training.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "checks.h"
#include "out_of_memory.h"

namespace {

using npu::check;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

// Takes the elements of a list in turn.
template <typename V>
class List {
 public:
  explicit List(const std::vector<V>& values) : values_(values) {}
  const V& next() {
    check(count_ < values_.size(), "train: the plan ends too early");
    return values_[count_++];
  }
  void end() const { check(count_ == values_.size(), "train: the plan has more than its layers take"); }

 private:
  const std::vector<V>& values_;
  size_t count_ = 0;
};

template <typename V>
V* pointer(const char* name, const Tensor& t, ScalarType dtype, int64_t count) {
  check(t.scalar_type() == dtype, "train: ", name, " has another dtype than the plan");
  check(t.is_cpu() && t.is_contiguous(), "train: ", name, " must be contiguous, on the CPU");
  check(t.numel() == count, "train: ", name, " must have ", count, " elements, got shape ", npu::shape_of(t));
  return static_cast<V*>(t.mutable_data_ptr());
}

struct Arguments {
  Tensors parameters, state;
  Tensor losses, x, y, weight, rows, schedules;
  std::vector<int64_t> plan;
  std::vector<double> numbers;
};

// The plan as the loop takes it. `integers` and `numbers` are in the order in which they are read here.
template <typename T>
class Plan {
 public:
  explicit Plan(const Arguments& a)
      : a_(a), dtype_(a.x.scalar_type()), integers_(a.plan), numbers_(a.numbers), state_(a.state) {
    run.adam = integers_.next() == 0;
    run.models = positive("models");
    run.steps = positive("steps");
    run.before = integers_.next();
    run.every = positive("every");
    run.shared_x = integers_.next() != 0;
    run.shared_y = integers_.next() != 0;
    run.finite = integers_.next() != 0;
    const int64_t layers = positive("layers");
    sizes_.resize(a.parameters.size());
    for (int64_t l = 0; l < layers; ++l) read_layer();
    for (size_t n = 0; n < a.parameters.size(); ++n) read_parameter(n);
    integers_.end();
    numbers_.end();
    state_.end();
    read_data();
  }

  npu::training::Run<T> run;

 private:
  int64_t positive(const char* name) {
    const int64_t value = integers_.next();
    check(value > 0, "train: ", name, " must be positive, got ", value);
    return value;
  }

  void read_layer() {
    static const auto kinds = npu::training::kinds<T>();
    const int64_t kind = integers_.next();
    check(kind >= 0 && size_t(kind) < kinds.size(), "train: there is no kind of layer ", kind);
    npu::training::Layer<T> layer{kinds[size_t(kind)], positive("in"), positive("out"), {}, {}};
    check(run.layers.empty() || run.layers.back().out == layer.in, "train: a layer takes ", layer.in,
          " features from one that has others");
    for (size_t w = 0; w < layer.kind.weights; ++w) {
      const int64_t index = layer.weights[w] = integers_.next();
      if (index < 0) continue;
      check(size_t(index) < sizes_.size() && sizes_[size_t(index)] == 0, "train: parameter ", index,
            " is not there, or belongs to two layers");
      int64_t size = 1;
      for (const char* shape = layer.kind.shapes[w]; *shape; ++shape)
        size *= *shape == 'O' ? layer.out : *shape == 'I' ? layer.in : 2 * layer.in;
      sizes_[size_t(index)] = size;
    }
    for (size_t n = 0; n < layer.kind.options; ++n) layer.options[n] = numbers_.next();
    run.layers.push_back(layer);
  }

  void read_parameter(size_t n) {
    npu::training::Parameter<T> p{};
    p.size = sizes_[n];
    check(p.size > 0, "train: parameter ", n, " belongs to no layer");
    p.values = pointer<T>("a parameter", a_.parameters[n], dtype_, run.models * p.size);
    p.trained = integers_.next() != 0;
    if (p.trained) read_update(p);
    run.parameters.push_back(p);
  }

  void read_update(npu::training::Parameter<T>& p) {
    p.rate = schedule();
    for (int64_t count = integers_.next(); count > 0; --count) {
      const int64_t kind = integers_.next();
      check(kind >= 0 && kind <= npu::training::kPaper, "train: there is no kind of penalty ", kind);
      p.penalties.push_back({npu::training::PenaltyKind(kind), schedule()});
    }
    const bool flags[2] = {integers_.next() != 0, integers_.next() != 0};
    p.low = numbers_.next(), p.high = numbers_.next();
    double o[4];
    for (double& value : o) value = numbers_.next();
    p.number = numbers_.next();
    bool kept[3] = {true, true, false};
    if (run.adam) {
      p.adam = {0, o[0], o[1], o[2], o[3], flags[1], flags[0]};
    } else {
      p.rmsprop = {o[0], o[1], o[2], o[3], flags[1], flags[0]};
      kept[1] = flags[1], kept[2] = o[3] > 0;
    }
    for (size_t s = 0; s < 3; ++s)
      if (kept[s]) p.state[s] = pointer<T>("a state", state_.next(), dtype_, run.models * p.size);
  }

  const double* schedule() {
    const int64_t row = integers_.next(), count = a_.schedules.dim() == 2 ? a_.schedules.size(0) : 0;
    check(row >= 0 && row < count, "train: there is no schedule ", row);
    return pointer<double>("schedules", a_.schedules, ScalarType::Double, count * run.steps) + row * run.steps;
  }

  void read_data() {
    const int64_t in = run.layers.front().in, out = run.layers.back().out, copies = run.shared_x ? 1 : run.models;
    run.count = a_.x.numel() / (copies * in);
    check(run.count > 0, "train: there are no rows");
    run.x = pointer<T>("x", a_.x, dtype_, copies * run.count * in);
    const int64_t targets = (run.shared_y ? 1 : run.models) * run.count * out;
    run.y = pointer<T>("y", a_.y, dtype_, targets);
    run.weight = a_.weight.numel() == 0 ? nullptr : pointer<T>("weight", a_.weight, dtype_, targets);
    run.batch = run.count;
    run.rows = nullptr;
    if (a_.rows.numel() > 0) {
      run.batch = a_.rows.numel() / run.steps;
      run.rows = pointer<int64_t>("rows", a_.rows, ScalarType::Long, run.steps * run.batch);
      check(run.batch > 0, "train: rows must have one for each step");
      const auto ends = std::minmax_element(run.rows, run.rows + run.steps * run.batch);
      check(*ends.first >= 0 && *ends.second < run.count, "train: rows must lie within [0, ", run.count, "), got ",
            *ends.first, " to ", *ends.second);
      for (const int64_t* rows = run.rows; rows < run.rows + run.steps * run.batch; rows += run.batch) {
        const auto jump = std::adjacent_find(rows, rows + run.batch, [](int64_t a, int64_t b) { return b != a + 1; });
        run.starts.push_back(jump == rows + run.batch ? *rows : -1);
      }
    }
    const int64_t records = (run.before + run.steps + run.every - 1) / run.every;
    check(run.before >= 0 && a_.losses.numel() >= records * run.models, "train: losses must have ", records, " rows");
    run.losses = pointer<T>("losses", a_.losses, dtype_, a_.losses.numel());
  }

  const Arguments& a_;
  const ScalarType dtype_;
  List<int64_t> integers_;
  List<double> numbers_;
  List<Tensor> state_;
  std::vector<int64_t> sizes_;  // of the parameters, for one model
};

template <typename T>
void train_as(const Arguments& arguments) {
  const Plan<T> plan(arguments);
  npu::training::run(plan.run);
}

void train(Tensors parameters, Tensors state, const Tensor& losses, const Tensor& x, const Tensor& y,
           const Tensor& weight, const Tensor& rows, const Tensor& schedules, std::vector<int64_t> plan,
           std::vector<double> numbers) {
  const Arguments a{parameters, state, losses, x, y, weight, rows, schedules, plan, numbers};
  const ScalarType dtype = x.scalar_type();
  check(dtype == ScalarType::Float || dtype == ScalarType::Double, "train: x must be float32 or float64");
  dtype == ScalarType::Float ? train_as<float>(a) : train_as<double>(a);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(npu_kernels, CPU, library) {
  library.impl("train", &npu::naming_memory<TORCH_BOX(&train), StableIValue>);
}
