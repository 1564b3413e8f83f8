// A training step of a plan that is kept (training_step.h), as long as nothing has changed that the plan was made of.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "common.h"
#include "training_step.h"

namespace npu_fast_path {

class TrainingPlan {
 public:
  // What the plan was made of:
  //   parameters: a list of (parameter, trained, written, state): the optimiser's state of it, a dict or None
  //   sizes: (K or 0, inputs, outputs), then whether float32 products must be full ones
  // Python checks them before.
  TrainingPlan(int64_t number, PyObject* parameters, PyObject* sizes) : number_(number) {
    const py::tuple facts = py::reinterpret_borrow<py::tuple>(sizes);
    models_ = facts[0].cast<int64_t>(), in_ = facts[1].cast<int64_t>(), out_ = facts[2].cast<int64_t>();
    full_products_ = facts[3].cast<bool>();
    for (const py::handle entry : py::reinterpret_borrow<py::list>(parameters)) {
      const py::tuple fields = py::reinterpret_borrow<py::tuple>(entry);
      One one{fields[0], fields[3], {}, {}, fields[0].cast<Tensor>(), {}, nullptr, false, fields[2].cast<bool>()};
      one.data = one.values.const_data_ptr(), one.trained = fields[1].cast<bool>();
      one.requires_grad = one.values.requires_grad();
      dtype_ = one.values.scalar_type();
      if (one.trained) {
        for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(one.state)) {
          one.names.push_back(py::reinterpret_borrow<py::object>(name));
          one.entries.push_back(py::reinterpret_borrow<py::object>(value));
          if (is(name.ptr(), "step")) one.number = value.cast<Tensor>();
          else written_.push_back(value.cast<Tensor>());
        }
      }
      if (one.written) written_.push_back(one.values);
      parameters_.push_back(std::move(one));
    }
  }
  ~TrainingPlan() { npu::forget_training_plan(number_); }
  TrainingPlan(const TrainingPlan&) = delete;
  TrainingPlan& operator=(const TrainingPlan&) = delete;

  // Whether parameters and the optimiser's state are those of the plan, and nothing hangs on them.
  bool unchanged(PyObject* states) const {
    if (full_products_ && npu::float_terms() != 3) return false;
    for (const One& one : parameters_) {
      const Tensor& t = THPVariable_Unpack(one.parameter.ptr());
      if (!same_memory(t, one.values, one.data) || t.requires_grad() != one.requires_grad || !plain(t, dtype_) ||
          !torch::autograd::impl::hooks(t).empty() || torch::autograd::impl::post_acc_grad_hooks(t) != nullptr)
        return false;
      if (!one.trained) continue;
      PyObject* state = PyDict_GetItemWithError(states, one.parameter.ptr());
      if (state != one.state.ptr() || size_t(PyDict_GET_SIZE(state)) != one.names.size()) return false;
      for (size_t n = 0; n < one.names.size(); ++n)
        if (PyDict_GetItemWithError(state, one.names[n].ptr()) != one.entries[n].ptr()) return false;
    }
    for (const Tensor& t : written_)
      if (!has_memory(t) || !t.is_contiguous()) return false;
    return true;
  }

  struct Data {
    Tensor x, y, weight;
  };

  // Whether the data fit the plan.
  bool read(PyObject* x, PyObject* y, PyObject* weight, Data& data) const {
    if (!unpack(x, dtype_, data.x) || !unpack(y, dtype_, data.y) || !unpack(weight, dtype_, data.weight) ||
        !data.x.defined() || !data.y.defined() || !fits(data.x, in_) || !fits(data.y, out_) ||
        data.x.size(-2) != data.y.size(-2) || data.x.size(-2) == 0)
      return false;
    if (data.weight.defined() &&
        (data.weight.sizes() != data.y.sizes() || !usable(data.weight) || !all_weigh(data.weight)))
      return false;
    for (const Tensor* t : {&data.x, &data.y, &data.weight})
      for (const Tensor& changed : written_)
        if (t->defined() && overlap(*t, changed)) return false;
    return true;
  }

  // The step; its loss before it.
  Tensor step(const Data& data, const std::vector<double>& schedules) const {
    std::vector<double> numbers;
    for (const One& one : parameters_)
      if (one.trained) numbers.push_back(by_number(one.number, [](auto* number) { return double(*number); }));
    const Tensor &x = data.x, &y = data.y;
    Tensor loss = models_ > 0 ? at::empty({models_}, x.options()) : at::empty({}, x.options());
    {
      const pybind11::gil_scoped_release without_gil;
      npu::training_step(number_, {x.const_data_ptr(), y.const_data_ptr(),
                                   data.weight.defined() ? data.weight.const_data_ptr() : nullptr, x.size(-2),
                                   models_ > 0 && x.dim() == 2, models_ > 0 && y.dim() == 2, schedules.data(),
                                   numbers.data(), loss.mutable_data_ptr()});
    }
    for (const One& one : parameters_) {
      THPVariable_Unpack(one.parameter.ptr()).mutable_grad().reset();
      if (!one.trained) continue;
      by_number(one.number, [](auto* number) { return *number += 1; });
      one.number.unsafeGetTensorImpl()->bump_version();
    }
    for (const Tensor& changed : written_) changed.unsafeGetTensorImpl()->bump_version();
    return loss;
  }

 private:
  struct One {
    py::object parameter, state;  // the state is a dict if it is trained
    std::vector<py::object> names, entries;
    Tensor values, number;  // number: of the optimiser's steps
    const void* data;
    bool requires_grad, written;
    bool trained = false;
  };

  template <typename F>
  static double by_number(const Tensor& number, F&& f) {
    if (number.scalar_type() == at::kDouble) return double(f(number.mutable_data_ptr<double>()));
    return double(f(number.mutable_data_ptr<float>()));
  }
  static bool same_memory(const Tensor& t, const Tensor& before, const void* data) {
    return t.is_contiguous() && t.const_data_ptr() == data && t.numel() == before.numel();
  }
  static bool usable(const Tensor& t) { return t.is_contiguous() && !t.requires_grad() && !t.is_neg(); }
  bool fits(const Tensor& t, int64_t features) const {
    const bool models = t.dim() == 3 && models_ > 0 && t.size(0) == models_;
    return usable(t) && (t.dim() == 2 || models) && t.size(-1) == features;
  }
  static bool all_weigh(const Tensor& weight) {
    bool all = true;
    by_dtype(weight.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const T* first = weight.const_data_ptr<T>();
      all = std::all_of(first, first + weight.numel(), [](T v) { return v >= 0 && std::isfinite(v); });
    });
    return all;
  }
  static bool overlap(const Tensor& a, const Tensor& b) {
    const char *begin_a = static_cast<const char*>(a.const_data_ptr()),
               *begin_b = static_cast<const char*>(b.const_data_ptr());
    return begin_a < begin_b + b.nbytes() && begin_b < begin_a + a.nbytes();
  }

  const int64_t number_;
  int64_t models_, in_, out_;
  bool full_products_;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<One> parameters_;
  std::vector<Tensor> written_;
};

constexpr const char* kTrainingPlan = "npu_kernels.training_plan";

// training_plan(number, parameters, sizes): the plan of that number, whose it is from now on
inline PyObject* training_plan(PyObject*, PyObject* const* args, Py_ssize_t) {
  auto plan = std::make_unique<TrainingPlan>(PyLong_AsLongLong(args[0]), args[1], args[2]);
  return PyCapsule_New(plan.release(), kTrainingPlan, [](PyObject* capsule) {
    delete static_cast<TrainingPlan*>(PyCapsule_GetPointer(capsule, kTrainingPlan));
  });
}

// training_step(plan, the optimiser's state, x, y, weight, schedules): the loss, or NotImplemented, and nothing was
// done
inline PyObject* training_step(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6 || !nothing_watches() || c10::InferenceMode::is_enabled()) Py_RETURN_NOTIMPLEMENTED;
  auto* plan = static_cast<TrainingPlan*>(PyCapsule_GetPointer(args[0], kTrainingPlan));
  if (plan == nullptr) return nullptr;
  TrainingPlan::Data data;
  if (!PyDict_Check(args[1]) || !plan->unchanged(args[1]) || !plan->read(args[2], args[3], args[4], data)) {
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NOTIMPLEMENTED;
  }
  std::vector<double> schedules;
  for (const py::handle value : py::reinterpret_borrow<py::list>(args[5])) schedules.push_back(value.cast<double>());
  return THPVariable_Wrap(plan->step(data, schedules));
}

}  // namespace npu_fast_path
