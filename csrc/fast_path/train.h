// A training step of a plan that is kept (training_step.h), as long as nothing has changed that the plan was made of.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "common.h"
#include "operators/training_step.h"

namespace npu_fast_path {

class TrainingPlan {
 public:
  // What the plan was made of:
  //   parameters: a list of (parameter, trained, written, state): the optimizer's state of it, a dict or None
  //   sizes: (K or 0, inputs, outputs), then whether float32 products must be full ones
  // Python checks them before.
  TrainingPlan(int64_t number, PyObject* parameters, PyObject* sizes) : kept_(number) {
    const py::tuple facts = py::reinterpret_borrow<py::tuple>(sizes);
    models_ = facts[0].cast<int64_t>(), in_ = facts[1].cast<int64_t>(), out_ = facts[2].cast<int64_t>();
    full_products_ = facts[3].cast<bool>();
    for (const py::handle entry : py::reinterpret_borrow<py::list>(parameters)) {
      const py::tuple fields = py::reinterpret_borrow<py::tuple>(entry);
      const Tensor values = fields[0].cast<Tensor>();
      One one{fields[0],
              fields[3],
              {},
              {},
              Place(values),
              {},
              values.requires_grad(),
              fields[1].cast<bool>(),
              fields[2].cast<bool>()};
      dtype_ = values.scalar_type();
      if (one.trained) {
        for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(one.state)) {
          one.names.push_back(py::reinterpret_borrow<py::object>(name));
          one.entries.push_back(py::reinterpret_borrow<py::object>(value));
          if (is(name.ptr(), "step")) one.number = value.cast<Tensor>();
          else moments_.push_back({value.cast<Tensor>(), Place(value.cast<Tensor>())});
        }
      }
      parameters_.push_back(std::move(one));
    }
  }

  // Whether parameters and the optimizer's state are those of the plan, and nothing hangs on them.
  bool unchanged(PyObject* states) const {
    if (full_products_ && npu::float_terms() != 3) return false;
    for (const One& one : parameters_) {
      const Tensor& t = THPVariable_Unpack(one.parameter.ptr());
      if (!one.values.holds(t, dtype_) || t.requires_grad() != one.requires_grad ||
          !torch::autograd::impl::hooks(t).empty() || torch::autograd::impl::post_acc_grad_hooks(t) != nullptr)
        return false;
      if (!one.trained) continue;
      PyObject* state = PyDict_GetItemWithError(states, one.parameter.ptr());
      if (state != one.state.ptr() || size_t(PyDict_GET_SIZE(state)) != one.names.size()) return false;
      for (size_t n = 0; n < one.names.size(); ++n)
        if (PyDict_GetItemWithError(state, one.names[n].ptr()) != one.entries[n].ptr()) return false;
      if (!real(one.number.scalar_type()) || !plain(one.number, one.number.scalar_type()) || one.number.numel() != 1)
        return false;
    }
    for (const auto& [moment, place] : moments_)
      if (!place.holds(moment, dtype_)) return false;
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
    for (const Tensor* t : {&data.x, &data.y, &data.weight}) {
      if (!t->defined()) continue;
      for (const One& one : parameters_)
        if (one.written && overlap(*t, THPVariable_Unpack(one.parameter.ptr()))) return false;
      for (const auto& [moment, place] : moments_)
        if (overlap(*t, moment)) return false;
    }
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
      npu::training_step(kept_.number, {x.const_data_ptr(), y.const_data_ptr(),
                                        data.weight.defined() ? data.weight.const_data_ptr() : nullptr, x.size(-2),
                                        models_ > 0 && x.dim() == 2, models_ > 0 && y.dim() == 2, schedules.data(),
                                        numbers.data(), loss.mutable_data_ptr()});
    }
    for (const One& one : parameters_) {
      const Tensor& parameter = THPVariable_Unpack(one.parameter.ptr());
      parameter.mutable_grad().reset();
      if (one.written) parameter.unsafeGetTensorImpl()->bump_version();
      if (!one.trained) continue;
      by_number(one.number, [](auto* number) { return *number += 1; });
      one.number.unsafeGetTensorImpl()->bump_version();
    }
    for (const auto& [moment, place] : moments_) moment.unsafeGetTensorImpl()->bump_version();
    return loss;
  }

 private:
  // The library's plan of that number, which is forgotten with this one, or where this one cannot be made.
  struct Kept {
    explicit Kept(int64_t n) : number(n) {}
    ~Kept() { npu::forget_training_plan(number); }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    const int64_t number;
  };
  // Where a tensor lay. A tensor can get other memory, another shape or dtype, and stay the same object: by
  // `.data`, `set_`, `share_memory_` and the methods of its storage.
  struct Place {
    explicit Place(const Tensor& t) : data(t.const_data_ptr()), shape(t.sizes().vec()) {}
    bool holds(const Tensor& t, at::ScalarType dtype) const {
      return plain(t, dtype) && t.is_contiguous() && t.const_data_ptr() == data && t.sizes() == shape;
    }
    const void* data;
    std::vector<int64_t> shape;
  };
  // Of a parameter. Its tensor is the Python object's: torch.utils.swap_tensors takes none that C++ holds.
  struct One {
    py::object parameter, state;  // the state is a dict if it is trained
    std::vector<py::object> names, entries;
    Place values;
    Tensor number;  // of the optimizer's steps
    bool requires_grad, trained, written;
  };

  template <typename F>
  static double by_number(const Tensor& number, F&& f) {
    if (number.scalar_type() == at::kDouble) return double(f(number.mutable_data_ptr<double>()));
    return double(f(number.mutable_data_ptr<float>()));
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

  const Kept kept_;
  int64_t models_, in_, out_;
  bool full_products_;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<One> parameters_;
  std::vector<std::pair<Tensor, Place>> moments_;
};

constexpr const char* kTrainingPlan = "npu_kernels.training_plan";

// training_plan(number, parameters, sizes): the plan of that number, whose it is from now on
inline PyObject* training_plan(PyObject*, PyObject* const* args, Py_ssize_t) {
  auto plan = std::make_unique<TrainingPlan>(PyLong_AsLongLong(args[0]), args[1], args[2]);
  return PyCapsule_New(plan.release(), kTrainingPlan, [](PyObject* capsule) {
    delete static_cast<TrainingPlan*>(PyCapsule_GetPointer(capsule, kTrainingPlan));
  });
}

// training_step(plan, the optimizer's state, x, y, weight, schedules): the loss, or NotImplemented, and nothing was
// done
inline PyObject* training_step(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6 || !nothing_watches() || hooks_see_saved() || c10::InferenceMode::is_enabled())
    Py_RETURN_NOTIMPLEMENTED;
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
