// A step of a training whose plan was read before, by the operator `train_plan` (train.cpp).
#pragma once

#include <cstdint>

namespace npu {

// What is another at each step. The dtype and the sizes of features are the plan's.
struct TrainingStep {
  const void *x, *y;   // [rows, I] and [rows, O], or with a leading K where they are not shared
  const void* weight;  // as y; null: 1
  int64_t rows;
  bool shared_x, shared_y;
  const double* schedules;  // the rate of each group of the optimizer, the weight of each penalty
  const double* numbers;    // the steps before, of each trained parameter
  void* losses;             // [K]
};

__attribute__((visibility("default"))) void training_step(int64_t plan, const TrainingStep& step);
__attribute__((visibility("default"))) void forget_training_plan(int64_t plan);

}  // namespace npu
