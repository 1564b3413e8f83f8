// Torch's own threads for the core (never a second OpenMP runtime), and only where the work pays for waking them.
#pragma once

#include <cstdint>

#include "api.h"

namespace npu {

// For one call of a kernel, and no longer: where it works alone because threads had to wait (core/backoff.h), the time
// until its end is counted.
class __attribute__((visibility("default"))) TorchThreads : public Parallel {
 public:
  explicit TorchThreads(double multiply_adds);
  ~TorchThreads();
  TorchThreads(const TorchThreads&) = delete;
  TorchThreads& operator=(const TorchThreads&) = delete;

 private:
  int64_t backed_off_at_ = 0;  // 0: it has not
};

inline TorchThreads torch_threads(double multiply_adds) { return TorchThreads(multiply_adds); }

// A feature of a row costs a logarithm or an exponential and a sine: worth some forty multiply-adds.
inline TorchThreads torch_threads(int64_t models, int64_t rows, int64_t in, int64_t out) {
  return torch_threads(double(models) * double(rows) * (double(in) * double(out) + 40.0 * double(in + out)));
}

// Second derivatives take some three times the products of a forward.
inline TorchThreads second_threads(int64_t models, int64_t rows, int64_t in, int64_t out) {
  return torch_threads(models, rows, 3 * in, out);
}

// An ODE solver: so many trajectories, by so many stages each.
inline TorchThreads ode_threads(int64_t trajectories, int64_t stages, int64_t features, int64_t hidden) {
  return torch_threads(trajectories * stages, 1, features, hidden);
}

}  // namespace npu
