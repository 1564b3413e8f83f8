// The interface of the adaptive steps (ode/adaptive.cpp).
#pragma once

#include "api.h"

namespace npu {

// An embedded Runge-Kutta pair of seven stages, the last of which is the next step's first: the coefficients in the
// order of npu_kernels/ode/_methods.py.
struct OdePair {
  static constexpr int64_t kStages = 7, kPowers = 4, kNumbers = 21 + 7 + 7 * 4 + 2;
  const double* numbers;

  double a(int64_t row, int64_t j) const { return numbers[row * (row + 1) / 2 + j]; }
  double error(int64_t j) const { return numbers[21 + j]; }
  double dense(int64_t j, int64_t power) const { return numbers[28 + kPowers * j + power]; }
  double stable() const { return numbers[56]; }
  double diagonal() const { return numbers[57]; }
  bool implicit() const { return diagonal() != 0; }
  // Numbers that a saved state has for each feature: an implicit method's has the derivatives of the step from it, too.
  int64_t saved() const { return implicit() ? 1 + kStages : 1; }
};

// What a trajectory of adaptive steps leaves for the backward: the ends of its N accepted steps, and its states 0,
// every, 2 every, .. up to N, [1 or 8, D] each (OdePair::saved). In memory of malloc, which grows.
template <typename T>
struct OdeSaved {
  double* times;
  T* states;
  int64_t times_room, states_room;
};

// Adaptive steps, at M times.
template <typename T>
struct OdeAdaptiveForward {
  OdeInputs<T> inputs;  // of which steps, stages, tableau, dt and last_stage mean nothing here
  OdePair pair;
  const T* u0;      // [K, B, D]
  const double* t;  // [M], M > 1, rising or falling; the first is u0's
  int64_t count;    // M
  double rtol, atol;
  int64_t max_steps;
  int64_t
      max_at_bound;  // a trajectory ends where so many of its steps, and half of them, are at the bound of stability
  int64_t every;
  T* path;             // [K, B, M, D]; nan where a trajectory did not get to
  T* last;             // [K, B, D]: the state reached
  int64_t* counts;     // [K, B, 5]: accepted, rejected, at the bound of stability, how it ended, evaluations
  double* clock;       // [K, B, 3]: time reached, size of the next step, time of the first step at that bound or nan
  OdeSaved<T>* saved;  // [K, B], empty; null: nothing is saved
};

template <typename T>
struct OdeAdaptiveBackward {
  OdeBackward<T> gradients;  // inputs, straight_through and the gradients; nothing else of it
  OdePair pair;
  double rtol, atol;
  const T *path, *grad_path;  // [K, B, M, D]; the path is null for an explicit method
  const double* t;
  int64_t count, every;
  const double* times;      // all trajectories' accepted steps' ends, one behind the other
  const T* states;          // and their saved states
  const int64_t* steps_at;  // [K B + 1]: where each trajectory's times begin, and where the last one's end
  const int64_t* states_at;
  double* grad_t;  // [K, B, M]: of every trajectory, 0 for the first time; null: not wanted
};

// realloc; throws what out_of_memory throws.
void* more_memory(void* old, size_t bytes);

}  // namespace npu
