// Sums over rows: the rows are split into groups by shape alone and the groups' sums added in order, so that the bits
// are the same at any number of threads.
#pragma once

#include "api.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

// Tasks are the groups of all models: the groups of a model lie beside each other.
struct RowGroups {
  int64_t all, count, rows;  // rows of a model, groups of a model, rows of a group (the last one's may be fewer)

  // Groups have some 64 rows at least, a multiple of `step` each; at most 16 of them, and at most `most_groups`.
  RowGroups(int64_t all, int64_t step, int64_t most_groups)
      : all(all),
        count(most<int64_t>(1, least(all / 64, least<int64_t>(16, most_groups)))),
        rows(round_up(ceil_div(all, count), step)) {}

  int64_t begin(int64_t task) const { return least(task % count * rows, all); }
  int64_t end(int64_t task) const { return least(begin(task) + rows, all); }
};

// total = the groups' sums of one model, `size` elements each, in order.
template <typename T>
void add_groups(const T* sums, const RowGroups& groups, int64_t size, T* total) {
  std::memcpy(total, sums, size_t(size) * sizeof(T));
  for (int64_t g = 1; g < groups.count; ++g)
    for (int64_t n = 0; n < size; ++n) total[n] += sums[g * size + n];
}

// The sums of a backward whose one weight has gradient grad_weight [K, O, I]: a Group of f, made once per thread, runs
// over the groups' rows (its other gradients it writes itself) and leaves in `sums` what they add to a model's
// gradient.
template <typename Group, typename T, typename Backward>
void run_row_groups(const Backward& f, const RowGroups& groups, const Parallel& parallel) {
  const int64_t models = f.inputs.models, size = f.inputs.out * f.inputs.in;
  const bool wanted = f.grad_weight != nullptr, direct = groups.count == 1;
  Scratch<T> partial(wanted && !direct ? models * groups.count * size : 0);
  parallel.over(models * groups.count, [&](int64_t begin, int64_t end) {
    Group group(f);
    for (int64_t task = begin; task < end; ++task) {
      T* sums = !wanted ? nullptr : (direct ? f.grad_weight : partial) + task * size;
      group.run(task / groups.count, groups.begin(task), groups.end(task), sums);
    }
  });
  if (direct || !wanted) return;
  parallel.over(models, [&](int64_t begin, int64_t end) {
    for (int64_t model = begin; model < end; ++model)
      add_groups<T>(partial + model * groups.count * size, groups, size, f.grad_weight + model * size);
  });
}

}  // namespace NPU_ISA
}  // namespace npu
