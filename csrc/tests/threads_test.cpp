// How threads share work (core/chunks.h), and when callers of threads work alone (core/backoff.h): its decisions, by
// made-up times.
#include <cstdio>
#include <vector>

#include "core/backoff.h"
#include "core/chunks.h"

namespace {

using npu::Backoff;
constexpr int64_t kMicro = 1000, kMilli = 1'000'000;
int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

// What calls of `alone` ns of work take in all, if one in threads takes `together`, and has `worked` in it.
int64_t total(int calls, int64_t alone, int64_t together, int64_t worked) {
  Backoff backoff;
  int64_t sum = 0;
  for (int n = 0; n < calls; ++n) {
    if (backoff.alone()) backoff.by_itself(alone), sum += alone;
    else backoff.in_threads(together, worked), sum += together;
  }
  return sum;
}

void threads_that_help_are_used() {
  expect(total(1000, 300 * kMicro, 160 * kMicro, 310 * kMicro) == 1000 * 160 * kMicro, "two threads, half the time");
  expect(total(1000, 50 * kMicro, 150 * kMicro, 50 * kMicro) == 1000 * 150 * kMicro, "slow to wake");
  expect(total(10, 40 * kMilli, 41 * kMilli, 40 * kMilli) == 10 * 41 * kMilli, "two threads that share a core");
}

void a_collapse_costs_an_eighth() {
  for (const int64_t together : {1 * kMilli, 8 * kMilli, 24 * kMilli, 100 * kMilli}) {
    const int64_t alone = 300 * kMicro, calls = 20000;
    expect(total(calls, alone, together, alone) < calls * alone * 118 / 100 + together, "a lasting collapse");
  }
}

// Time between the calls pays nothing back: other operators, sleep. Only work does.
void only_work_pays() {
  Backoff backoff;
  expect(!backoff.alone() && backoff.debt() == 0, "no debt to begin with");
  backoff.in_threads(20 * kMilli, 1 * kMilli);
  expect(backoff.alone() && backoff.debt() == Backoff::kTimes * 19 * kMilli, "the debt is the time lost, kTimes over");
  backoff.by_itself(Backoff::kTimes * 19 * kMilli - 1);
  expect(backoff.alone(), "not paid yet");
  backoff.by_itself(1 * kMilli);
  expect(!backoff.alone() && backoff.debt() == 0, "paid");
}

// Others that were in threads meanwhile report the same collapse, or none.
void one_debt_for_all() {
  Backoff backoff;
  backoff.in_threads(20 * kMilli, 0);
  backoff.in_threads(10 * kMilli, 0);
  backoff.in_threads(1 * kMilli, 2 * kMilli);
  expect(backoff.debt() == Backoff::kTimes * 20 * kMilli, "the largest loss counts, once");
  backoff.in_threads(int64_t(1) << 50, 0);
  expect(backoff.debt() == Backoff::kMax, "a suspended process works alone for a second at most");
}

// A thread alone gets everything once, its own part first.
void every_chunk_once() {
  for (const int64_t threads : {1, 2, 3, 16, 100}) {
    for (const int64_t count : {1, 2, 7, 64, 1000}) {
      for (const int64_t thread : {int64_t(0), threads / 2, threads - 1}) {
        npu::Chunks chunks(count, threads);
        std::vector<int> times(size_t(count), 0);
        int64_t begun_with = -1;
        chunks.take(thread, [&](int64_t begin, int64_t end) {
          if (begun_with < 0) begun_with = begin;
          for (; begin < end; ++begin) ++times[size_t(begin)];
        });
        for (const int n : times) expect(n == 1, "every element once");
        if (count == 1000 && threads < 50) {
          const int64_t own = count * thread / threads;
          expect(begun_with >= own - count / (4 * threads) && begun_with <= own, "the own part first");
        }
        bool more = false;
        chunks.take(0, [&](int64_t, int64_t) { more = true; });
        expect(!more, "nothing is left");
      }
    }
  }
}

// While the first of four threads is at its first chunk, the second one comes and does all the rest.
void a_late_thread_gets_less() {
  npu::Chunks chunks(160, 4);
  std::vector<int64_t> first, second;
  chunks.take(0, [&](int64_t begin, int64_t end) {
    first.push_back(begin);
    expect(end - begin == 10, "a sixteenth of the work");
    chunks.take(1, [&](int64_t b, int64_t) { second.push_back(b); });
  });
  expect(first == std::vector<int64_t>{0}, "one chunk for the first");
  expect(second == std::vector<int64_t>{40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150, 10, 20, 30},
         "its own part, then those of the next threads");
}

}  // namespace

int main() {
  every_chunk_once();
  a_late_thread_gets_less();
  threads_that_help_are_used();
  a_collapse_costs_an_eighth();
  only_work_pays();
  one_debt_for_all();
  std::printf("%d failures\n", failures);
  return failures ? 1 : 0;
}
