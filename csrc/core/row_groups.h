// Sums over rows: the rows are split into groups by shape alone and the groups' sums added in order, so that the bits
// are the same at any number of threads. A group's rows go in spans: the sums of a span are made in T, and those of
// spans and of groups added up in double, so that rounding errors do not grow with the number of rows.
#pragma once

#include "api.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

// A multiple of every step of RowGroups.
constexpr int64_t kSpanRows = 1024;

// Adds a span's sums to the total of its group's, or begins it.
template <typename T>
void add_span(const T* sums, int64_t size, bool first, double* total, const Parallel& parallel) {
  constexpr int64_t kChunk = 8192;
  parallel.over(ceil_div(size, kChunk), [&](int64_t begin, int64_t end) {
    const int64_t last = min(end * kChunk, size);
    if (first)
      for (int64_t n = begin * kChunk; n < last; ++n) total[n] = double(sums[n]);
    else
      for (int64_t n = begin * kChunk; n < last; ++n) total[n] += double(sums[n]);
  });
}

// Tasks are the groups of all models: the groups of a model lie beside each other.
struct RowGroups {
  int64_t all, count, rows;  // rows of a model, groups of a model, rows of a group (the last one's may be fewer)

  // Groups have some 64 rows at least, a multiple of `step` each; at most 16 of them, and at most `max_groups`.
  RowGroups(int64_t all, int64_t step, int64_t max_groups)
      : all(all),
        count(max<int64_t>(1, min(all / 64, min<int64_t>(16, max_groups)))),
        rows(round_up(ceil_div(all, count), step)) {}

  int64_t begin(int64_t task) const { return min(task % count * rows, all); }
  int64_t end(int64_t task) const { return min(begin(task) + rows, all); }
};

// The sums over all rows, [K][size], null where they are not wanted: a Group, which `make` gives once per thread,
// overwrites `sums` by those of rows [begin, end) of a model in run(model, begin, end, sums).
template <typename T, typename Make>
void sum_rows(int64_t models, const RowGroups& groups, int64_t size, const Parallel& parallel, T* sums,
              const Make& make) {
  const bool wanted = sums != nullptr, one_span = groups.rows <= kSpanRows, direct = groups.count == 1 && one_span;
  const bool adds = wanted && !direct, adds_spans = adds && !one_span;
  const int64_t all = models * groups.count * size;
  Scratch<T> single(adds && one_span ? all : 0);  // of a group
  Scratch<double> total(adds_spans ? all : 0);
  parallel.over(models * groups.count, [&](int64_t begin, int64_t end) {
    const Parallel serial;
    Scratch<T> own(adds_spans ? size : 0);
    auto group = make();
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / groups.count, first = groups.begin(task), last = groups.end(task);
      if (!adds_spans) {
        group.run(model, first, last, adds ? single + task * size : (wanted ? sums + model * size : nullptr));
        continue;
      }
      for (int64_t row = first; row == first || row < last; row += kSpanRows) {
        group.run(model, row, min(row + kSpanRows, last), own);
        add_span(static_cast<const T*>(own), size, row == first, total + task * size, serial);
      }
    }
  });
  if (!adds) return;
  constexpr int64_t kChunk = 512;
  const int64_t chunks = ceil_div(size, kChunk);
  parallel.over(models * chunks, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / chunks, at = task % chunks * kChunk, count = min(kChunk, size - at);
      double sum[kChunk] = {};
      const auto add = [&](const auto* groups_sums) {
        for (int64_t g = 0; g < groups.count; ++g, groups_sums += size)
          for (int64_t n = 0; n < count; ++n) sum[n] += double(groups_sums[n]);
      };
      if (one_span) add(single + model * groups.count * size + at);
      else add(total + model * groups.count * size + at);
      for (int64_t n = 0; n < count; ++n) sums[model * size + at + n] = T(sum[n]);
    }
  });
}

}  // namespace NPU_ISA
}  // namespace npu
