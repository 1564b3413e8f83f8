// The operator `train`: training steps of a chain of layers (training_loop.h). Its arguments are a plan that
// npu_kernels/training/_plan.py writes; here it is read and checked, so that a wrong one is an error and no wrong
// access. The operator `train_plan` reads a plan of one step and keeps it, for steps with other rows (training_step.h).
#include "training_loop.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "checks.h"
#include "out_of_memory.h"
#include "training_step.h"

namespace {

using npu::check;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

// ---- the records of a plan -----------------------------------------------------------------------------------------

// A plan is records, one after the other: their integers in one list, their numbers in another, each in the order of
// its fields. npu_kernels/training/_plan.py has the same records. When the library loads, it compares the
// names of their fields with those here.
#define NPU_INTEGER(field) int64_t field;
#define NPU_NUMBER(field) double field;
#define NPU_FIELD_NAME(field) " " #field
#define NPU_COUNT(field) +1
#define NPU_RECORD(Record, name, INTEGERS, NUMBERS)                                                            \
  struct Record {                                                                                              \
    INTEGERS(NPU_INTEGER)                                                                                      \
    NUMBERS(NPU_NUMBER)                                                                                        \
    static constexpr size_t integers = 0 INTEGERS(NPU_COUNT), numbers = 0 NUMBERS(NPU_COUNT);                  \
    static constexpr const char* fields = name ":" INTEGERS(NPU_FIELD_NAME) " |" NUMBERS(NPU_FIELD_NAME) "\n"; \
  };

#define NPU_NO_FIELDS(X)
#define NPU_CALL_INTEGERS(X) \
  X(rmsprop) X(models) X(steps) X(before) X(every) X(shared_x) X(shared_y) X(finite) X(layers)
#define NPU_LAYER_INTEGERS(X) X(kind) X(in_features) X(out_features)
#define NPU_PARAMETER_INTEGERS(X) X(trained)
#define NPU_PARAMETER_NUMBERS(X) X(low) X(high)
#define NPU_UPDATE_INTEGERS(X) X(rate) X(penalties)
#define NPU_UPDATE_NUMBERS(X) X(steps_before)
#define NPU_PENALTY_INTEGERS(X) X(kind) X(schedule)
#define NPU_ADAM_INTEGERS(X) X(maximize) X(decoupled)
#define NPU_ADAM_NUMBERS(X) X(beta1) X(beta2) X(eps) X(weight_decay)
#define NPU_RMSPROP_INTEGERS(X) X(maximize) X(centered)
#define NPU_RMSPROP_NUMBERS(X) X(alpha) X(eps) X(weight_decay) X(momentum)

// First a Call. Then for each layer a Layer, and the parameters and options that its kind has. Then for each parameter
// a Parameter, and if it is trained an Update, its penalties, and Adam or RMSprop.
NPU_RECORD(Call, "call", NPU_CALL_INTEGERS, NPU_NO_FIELDS)
NPU_RECORD(Layer, "layer", NPU_LAYER_INTEGERS, NPU_NO_FIELDS)
NPU_RECORD(Parameter, "parameter", NPU_PARAMETER_INTEGERS, NPU_PARAMETER_NUMBERS)
NPU_RECORD(Update, "update", NPU_UPDATE_INTEGERS, NPU_UPDATE_NUMBERS)
NPU_RECORD(Penalty, "penalty", NPU_PENALTY_INTEGERS, NPU_NO_FIELDS)
NPU_RECORD(Adam, "adam", NPU_ADAM_INTEGERS, NPU_ADAM_NUMBERS)
NPU_RECORD(RmsProp, "rmsprop", NPU_RMSPROP_INTEGERS, NPU_RMSPROP_NUMBERS)

// The names of all records' fields, a line for each record; integers before the bar, numbers behind it.
std::string record_fields() {
  std::string text;
  for (const char* fields :
       {Call::fields, Layer::fields, Parameter::fields, Update::fields, Penalty::fields, Adam::fields, RmsProp::fields})
    text += fields;
  for (const auto& kind : npu::training::kinds<float>()) {
    text += std::string(kind.name) + ":";
    for (size_t w = 0; w < kind.weights; ++w) text += std::string(" ") + kind.weight[w].name;
    text += " |";
    for (size_t n = 0; n < kind.options; ++n) text += std::string(" ") + kind.option[n].name;
    text += "\n";
  }
  text += "penalties:";
  for (const char* name : npu::training::kPenaltyNames) text += std::string(" ") + name;
  return text + " |\n";
}

// The lists of a plan, of which records are taken in turn.
class Lists {
 public:
  Lists(const std::vector<int64_t>& integers, const std::vector<double>& numbers)
      : integers_(integers), numbers_(numbers) {}

  template <typename Record>
  Record take() {
    static_assert(std::is_trivially_copyable_v<Record>);
    static_assert(sizeof(Record) == Record::integers * sizeof(int64_t) + Record::numbers * sizeof(double));
    Record record;
    char* to = reinterpret_cast<char*>(&record);
    for (size_t n = 0; n < Record::integers; ++n, to += sizeof(int64_t)) {
      const int64_t value = integer();
      std::memcpy(to, &value, sizeof value);
    }
    for (size_t n = 0; n < Record::numbers; ++n, to += sizeof(double)) {
      const double value = number();
      std::memcpy(to, &value, sizeof value);
    }
    return record;
  }
  int64_t integer() { return next(integers_, &integer_); }
  double number() {
    const double value = next(numbers_, &number_);
    check(!std::isnan(value), "train: number ", number_ - 1, " of the plan is nan");
    return value;
  }
  void end() const {
    check(integer_ == integers_.size() && number_ == numbers_.size(), "train: the plan has more than its layers take");
  }

 private:
  template <typename V>
  static V next(const std::vector<V>& values, size_t* index) {
    check(*index < values.size(), "train: the plan ends too early");
    return values[(*index)++];
  }

  const std::vector<int64_t>& integers_;
  const std::vector<double>& numbers_;
  size_t integer_ = 0, number_ = 0;
};

// ---- sizes and memory ----------------------------------------------------------------------------------------------

template <typename... Sizes>
int64_t product(Sizes... sizes) {
  return npu::product("train", sizes...);
}

// The memory of all tensors of a call. What is written must lie apart from everything else.
class Memory {
 public:
  template <typename V>
  const V* read(const char* name, const Tensor& t, ScalarType dtype, int64_t count) {
    check_tensor(name, t, dtype, count, sizeof(V));
    return add(name, static_cast<const V*>(t.const_data_ptr()), count, false);
  }
  template <typename V>
  V* write(const char* name, const Tensor& t, ScalarType dtype, int64_t count) {
    check_tensor(name, t, dtype, count, sizeof(V));
    return add(name, static_cast<V*>(t.mutable_data_ptr()), count, true);
  }
  void check_apart() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    const Range *any = nullptr, *written = nullptr;  // that reach furthest
    for (const Range& range : ranges_) {
      const Range* other = range.written ? any : written;
      check(other == nullptr || other->end <= range.begin, "train: ", range.name, " lies in the memory of ",
            other == nullptr ? "" : other->name);
      if (any == nullptr || any->end < range.end) any = &range;
      if (range.written && (written == nullptr || written->end < range.end)) written = &range;
    }
  }

 private:
  struct Range {
    uintptr_t begin, end;
    bool written;
    const char* name;
  };

  static void check_tensor(const char* name, const Tensor& t, ScalarType dtype, int64_t count, size_t size) {
    check(t.scalar_type() == dtype, "train: ", name, " has another dtype than the plan");
    check(t.is_cpu() && t.is_contiguous(), "train: ", name, " must be contiguous, on the CPU");
    check(t.numel() == count, "train: ", name, " must have ", count, " elements, got shape ", npu::shape_of(t));
    npu::check_storage("train", name, t, size);
  }
  template <typename V>
  V* add(const char* name, V* pointer, int64_t count, bool written) {
    check(count == 0 || pointer != nullptr, "train: ", name, " has no memory");
    const uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
    if (count > 0) ranges_.push_back({begin, begin + size_t(count) * sizeof(V), written, name});
    return pointer;
  }

  std::vector<Range> ranges_;
};

// ---- a plan --------------------------------------------------------------------------------------------------------

struct Arguments {
  Tensors parameters, state;
  Tensor losses, x, y, weight, rows, schedules;
  std::vector<int64_t> integers;
  std::vector<double> numbers;
};

// The plan as the loop takes it.
template <typename T>
class Plan {
 public:
  explicit Plan(const Arguments& a) : a_(a), dtype_(a.x.scalar_type()), lists_(a.integers, a.numbers) {
    const Call call = lists_.take<Call>();
    run.adam = !flag("rmsprop", call.rmsprop);
    run.models = positive("models", call.models);
    run.steps = positive("steps", call.steps);
    run.before = call.before;
    run.every = positive("every", call.every);
    run.shared_x = flag("shared_x", call.shared_x);
    run.shared_y = flag("shared_y", call.shared_y);
    run.finite = flag("finite", call.finite);
    read_schedules();
    sizes_.resize(a.parameters.size());
    for (int64_t l = positive("layers", call.layers); l > 0; --l) read_layer();
    for (size_t n = 0; n < a.parameters.size(); ++n) read_parameter(n);
    lists_.end();
    check(state_ == a.state.size(), "train: the plan has more than its layers take");
    read_data();
    read_rows();
    read_losses(call);
    memory_.check_apart();
  }

  npu::training::Run<T> run;

  // What a block reserves, in bytes, with room for its few tensors a layer.
  void check_sizes() const {
    for (const auto& layer : run.layers) product(run.models, run.batch, std::max(layer.in, layer.out), 1024);
  }

 private:
  static int64_t positive(const char* name, int64_t value) {
    check(value > 0, "train: ", name, " must be positive, got ", value);
    return value;
  }
  static bool flag(const char* name, int64_t value) {
    check(value == 0 || value == 1, "train: ", name, " must be 0 or 1, got ", value);
    return value == 1;
  }

  void read_schedules() {
    const Tensor& t = a_.schedules;
    check(t.dim() == 2 && t.size(1) == run.steps, "train: schedules must have ", run.steps, " columns, got shape ",
          npu::shape_of(t));
    schedules_ = memory_.template read<double>("schedules", t, ScalarType::Double, t.numel());
  }
  const double* schedule(int64_t row) const {
    check(row >= 0 && row < a_.schedules.size(0), "train: there is no schedule ", row);
    return schedules_ + row * run.steps;
  }

  void read_layer() {
    static const auto kinds = npu::training::kinds<T>();
    const Layer l = lists_.take<Layer>();
    check(l.kind >= 0 && size_t(l.kind) < kinds.size(), "train: there is no kind of layer ", l.kind);
    npu::training::Layer<T> layer{kinds[size_t(l.kind)],
                                  positive("in_features", l.in_features),
                                  positive("out_features", l.out_features),
                                  {},
                                  {}};
    check(run.layers.empty() || run.layers.back().out == layer.in, "train: a layer takes ", layer.in,
          " features from one that has others");
    for (size_t w = 0; w < layer.kind.weights; ++w) {
      layer.weights[w] = lists_.integer();
      read_size(layer, layer.kind.weight[w], layer.weights[w]);
    }
    for (size_t n = 0; n < layer.kind.options; ++n) layer.options[n] = lists_.number();
    run.layers.push_back(layer);
  }
  void read_size(const npu::training::Layer<T>& layer, const npu::Weight& weight, int64_t index) {
    if (index == -1 && weight.optional) return;
    check(index >= 0 && size_t(index) < sizes_.size() && sizes_[size_t(index)] == 0, "train: parameter ", index, ", ",
          weight.name, " of ", layer.kind.name, ", is not there, or belongs to two layers");
    int64_t size = 1;
    for (const char* letter = weight.shape; *letter; ++letter)
      size = product(size, *letter == 'O' ? layer.out : layer.in, *letter == 'J' ? 2 : 1);
    sizes_[size_t(index)] = size;
  }

  void read_parameter(size_t n) {
    npu::training::Parameter<T> p{};
    p.size = sizes_[n];
    check(p.size > 0, "train: parameter ", n, " belongs to no layer");
    const Parameter record = lists_.take<Parameter>();
    p.trained = flag("trained", record.trained), p.low = record.low, p.high = record.high;
    check(p.low <= p.high, "train: an interval must not be empty, got [", p.low, ", ", p.high, "]");
    const Tensor& t = a_.parameters[n];
    const int64_t count = product(run.models, p.size);
    if (p.trained || npu::training::bounded(p.low, p.high))
      p.values = memory_.template write<T>("a parameter", t, dtype_, count);
    else p.values = const_cast<T*>(memory_.template read<T>("a parameter", t, dtype_, count));
    if (p.trained) read_update(p);
    run.parameters.push_back(p);
  }

  void read_update(npu::training::Parameter<T>& p) {
    const Update update = lists_.take<Update>();
    p.rate = schedule(update.rate), p.number = update.steps_before;
    check(p.number >= 0, "train: steps_before must be at least 0, got ", p.number);
    check(update.penalties >= 0, "train: penalties must be at least 0, got ", update.penalties);
    for (int64_t count = update.penalties; count > 0; --count) {
      const Penalty penalty = lists_.take<Penalty>();
      check(penalty.kind >= 0 && size_t(penalty.kind) < std::size(npu::training::kPenaltyNames),
            "train: there is no kind of penalty ", penalty.kind);
      p.penalties.push_back({npu::training::PenaltyKind(penalty.kind), schedule(penalty.schedule)});
    }
    run.adam ? read_adam(p) : read_rmsprop(p);
  }
  void read_adam(npu::training::Parameter<T>& p) {
    const Adam o = lists_.take<Adam>();
    p.adam = {0, o.beta1, o.beta2, o.eps, o.weight_decay, flag("decoupled", o.decoupled), flag("maximize", o.maximize)};
    for (size_t s = 0; s < 2; ++s) p.state[s] = next_state(p);
  }
  void read_rmsprop(npu::training::Parameter<T>& p) {
    const RmsProp o = lists_.take<RmsProp>();
    const bool centered = flag("centered", o.centered);
    p.rmsprop = {o.alpha, o.eps, o.weight_decay, o.momentum, centered, flag("maximize", o.maximize)};
    p.state[0] = next_state(p);
    if (centered) p.state[1] = next_state(p);
    if (o.momentum > 0) p.state[2] = next_state(p);
  }
  T* next_state(const npu::training::Parameter<T>& p) {
    check(state_ < a_.state.size(), "train: the plan ends too early");
    return memory_.template write<T>("a state", a_.state[state_++], dtype_, product(run.models, p.size));
  }

  void read_data() {
    const int64_t in = run.layers.front().in, out = run.layers.back().out, copies = run.shared_x ? 1 : run.models;
    run.count = a_.x.numel() / product(copies, in);
    check(run.count > 0, "train: there are no rows");
    run.x = memory_.template read<T>("x", a_.x, dtype_, product(copies, run.count, in));
    const int64_t targets = product(run.shared_y ? 1 : run.models, run.count, out);
    run.y = memory_.template read<T>("y", a_.y, dtype_, targets);
    run.weight = a_.weight.numel() == 0 ? nullptr : memory_.template read<T>("weight", a_.weight, dtype_, targets);
  }
  void read_rows() {
    run.batch = run.count;
    run.rows = nullptr;
    if (a_.rows.numel() > 0) {
      run.batch = a_.rows.numel() / run.steps;
      check(run.batch > 0, "train: rows must have one for each step");
      const int64_t count = product(run.steps, run.batch);
      run.rows = memory_.template read<int64_t>("rows", a_.rows, ScalarType::Long, count);
      const auto ends = std::minmax_element(run.rows, run.rows + count);
      check(*ends.first >= 0 && *ends.second < run.count, "train: rows must lie within [0, ", run.count, "), got ",
            *ends.first, " to ", *ends.second);
      for (const int64_t* rows = run.rows; rows < run.rows + count; rows += run.batch) {
        const auto jump = std::adjacent_find(rows, rows + run.batch, [](int64_t a, int64_t b) { return b != a + 1; });
        run.starts.push_back(jump == rows + run.batch ? *rows : -1);
      }
    }
    check_sizes();
  }
  void read_losses(const Call& call) {
    check(call.before >= 0 && call.before <= std::numeric_limits<int64_t>::max() - run.steps,
          "train: before must be at least 0, got ", call.before);
    const int64_t records = (run.before + run.steps - 1) / run.every + 1;
    check(a_.losses.numel() >= product(records, run.models), "train: losses must have ", records, " rows");
    run.losses = memory_.template write<T>("losses", a_.losses, dtype_, a_.losses.numel());
  }

  const Arguments& a_;
  const ScalarType dtype_;
  Lists lists_;
  Memory memory_;
  size_t state_ = 0;
  const double* schedules_ = nullptr;
  std::vector<int64_t> sizes_;  // of the parameters, for one model
};

template <typename F>
void by_dtype(const Tensor& x, F&& f) {
  const ScalarType dtype = x.scalar_type();
  check(dtype == ScalarType::Float || dtype == ScalarType::Double, "train: x must be float32 or float64");
  dtype == ScalarType::Float ? f(float{}) : f(double{});
}

void train(Tensors parameters, Tensors state, const Tensor& losses, const Tensor& x, const Tensor& y,
           const Tensor& weight, const Tensor& rows, const Tensor& schedules, std::vector<int64_t> integers,
           std::vector<double> numbers) {
  const Arguments a{parameters, state, losses, x, y, weight, rows, schedules, integers, numbers};
  by_dtype(x, [&](auto zero) { npu::training::run(Plan<decltype(zero)>(a).run); });
}

// ---- a plan that is kept ------------------------------------------------------------------------------------------

class AnyPlan {
 public:
  virtual ~AnyPlan() = default;
  virtual void step(const npu::TrainingStep& step) = 0;
};

template <typename T>
class KeptPlan : public AnyPlan {
 public:
  explicit KeptPlan(Arguments arguments) : arguments_(std::move(arguments)), plan_(arguments_) {
    check(plan_.run.steps == 1 && plan_.run.rows == nullptr, "train_plan: the plan must have one step, of all rows");
  }

  void step(const npu::TrainingStep& step) override {
    const std::lock_guard<std::mutex> lock(mutex_);  // two threads may call
    npu::training::Run<T>& run = plan_.run;
    run.x = static_cast<const T*>(step.x), run.y = static_cast<const T*>(step.y);
    run.weight = static_cast<const T*>(step.weight), run.losses = static_cast<T*>(step.losses);
    run.count = run.batch = step.rows, run.shared_x = step.shared_x, run.shared_y = step.shared_y;
    plan_.check_sizes();
    std::copy_n(step.schedules, arguments_.schedules.numel(),
                static_cast<double*>(arguments_.schedules.mutable_data_ptr()));
    const double* number = step.numbers;
    for (auto& parameter : run.parameters)
      if (parameter.trained) parameter.number = *number++;
    npu::training::run(run);
  }

 private:
  const Arguments arguments_;
  Plan<T> plan_;
  std::mutex mutex_;
};

std::mutex kept_mutex;
std::map<int64_t, std::shared_ptr<AnyPlan>> kept;  // by their numbers
int64_t last_kept = 0;

int64_t train_plan(Tensors parameters, Tensors state, const Tensor& losses, const Tensor& x, const Tensor& y,
                   const Tensor& weight, const Tensor& rows, const Tensor& schedules, std::vector<int64_t> integers,
                   std::vector<double> numbers) {
  std::shared_ptr<AnyPlan> plan;
  by_dtype(x, [&](auto zero) {
    plan = std::make_shared<KeptPlan<decltype(zero)>>(
        Arguments{parameters, state, losses, x, y, weight, rows, schedules, integers, numbers});
  });
  const std::lock_guard<std::mutex> lock(kept_mutex);
  kept[++last_kept] = plan;
  return last_kept;
}

}  // namespace

void npu::training_step(int64_t plan, const TrainingStep& step) {
  std::shared_ptr<AnyPlan> found;
  {
    const std::lock_guard<std::mutex> lock(kept_mutex);
    const auto place = kept.find(plan);
    check(place != kept.end(), "train_plan: there is no plan ", plan);
    found = place->second;
  }
  found->step(step);
}

void npu::forget_training_plan(int64_t plan) {
  std::shared_ptr<AnyPlan> last;  // its tensors are freed after the lock, because that may run Python
  const std::lock_guard<std::mutex> lock(kept_mutex);
  const auto place = kept.find(plan);
  if (place == kept.end()) return;
  last = std::move(place->second);
  kept.erase(place);
}

STABLE_TORCH_LIBRARY_IMPL(npu_kernels, CPU, library) {
  library.impl("train", &npu::naming_memory<TORCH_BOX(&train), StableIValue>);
  library.impl("train_plan", &npu::naming_memory<TORCH_BOX(&train_plan), StableIValue>);
}

extern "C" __attribute__((visibility("default"))) const char* npu_kernels_plan_fields() {
  static const std::string fields = record_fields();
  return fields.c_str();
}
