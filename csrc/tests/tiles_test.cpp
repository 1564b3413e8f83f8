// The NPU by tiles of bfloat16 against long double, against the AVX-512 kernels, and under one thread and several; on
// processors without AMX its machine code runs in the emulator, which is tested first.
//
//   tiles_test avx512_bf16 | amx [limit on the work of one case]
#include <string>

#include "core/npu/tiled.h"
#define NPU_ISA baseline
#include "core/npu/side_work.h"
#include "npu_cases.h"
#if defined(NPU_AMX)
#include <immintrin.h>

#include "amx_emulator.h"
#endif

namespace {

using Forward = void (*)(const npu::NpuForward<float>&, const npu::Parallel&);
using Backward = void (*)(const npu::NpuBackward<float>&, const npu::Parallel&);
using npu::NpuBackward;
using npu::NpuForward;

struct Kernels {
  Forward forward;
  Backward backward;
};
constexpr Kernels kPlain{npu::avx512::npu_forward<float>, npu::avx512::npu_backward<float>};

Results<float> run(const Case<float>& c, const Kernels& kernels, int threads = 1) {
  return Results<float>(c, kernels.forward, kernels.backward, workers(threads));
}

// The same with the backward of the exact y and s: its errors are its own.
Results<float> run_apart(const Case<float>& c, const Kernels& kernels, int threads, const Expected<float>& expected) {
  const std::vector<float> y(expected.part[0].begin(), expected.part[0].end());
  const std::vector<float> s(expected.part[1].begin(), expected.part[1].end());
  const auto backward = [&](NpuBackward<float> f, const npu::Parallel& parallel) {
    f.y = y.data(), f.s = s.data();
    kernels.backward(f, parallel);
  };
  return Results<float>(c, kernels.forward, backward, workers(threads));
}

void fail(const char* what) {
  std::printf("FAILED: %s\n", what);
  ++failures;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Squared relative errors of all cases together, of the AVX-512 kernels and of the tiles with one to three terms: a
// single case's error is that of its few largest elements.
struct Pool {
  long double squares[4][Results<float>::kParts] = {};
  int cases[Results<float>::kParts] = {};

  void add(int which, int p, long double error) {
    squares[which][p] += error * error;
    cases[p] += which == 0 && error > 0;
  }
  long double error(int which, int p) const { return sqrtl(squares[which][p] / cases[p]); }

  // Three terms are as good as float32. Fewer must be worse by what they leave out: this shows that the kernel takes no
  // more terms than asked.
  void check() const {
    for (int p = 0; p < Results<float>::kParts; ++p) {
      const long double plain = error(0, p), whole = error(3, p), two = error(2, p), one = error(1, p);
      std::printf("%-15s error of float32 %.1Le, 3 terms %.1Le, 2 terms %.1Le, 1 term %.1Le\n",
                  Results<float>::kNames[p], plain, whole, two, one);
      if (!(whole < 2 * plain)) fail("3 terms");
      if (!(two > 4 * whole && two < 2e-5L)) fail("2 terms");
      if (!(one > 50 * two && one < 1e-2L)) fail("1 term");
    }
  }
};

// Negative only in some tiles of rows, blocks of inputs and both: mask products are left out and taken up again.
void mix_signs(Case<float>& c) {
  const int64_t rows = int64_t(c.x.size()) / c.n.in;
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t i = 0; i < c.n.in; ++i) {
      float& x = c.x[size_t(b * c.n.in + i)];
      const bool may = b < 40 ? false : (b < 72 ? i >= 256 || c.n.in < 256 : i < 32 || (i >= 64 && i < 256));
      if (!may) x = std::fabs(x);
    }
  }
}

// Errors at every number of terms; without a pool at the largest alone.
void check_errors(const Shape& n, const Kernels& kernels, double grad_scale, bool mixed, Pool* pool) {
  Case<float> c(n);
  if (mixed) mix_signs(c);
  for (float& g : c.grad_y) g *= float(grad_scale);
  const Expected<float> expected(c);
  const Results<float> plain = run_apart(c, kPlain, 1, expected);
  for (int p = 0; pool != nullptr && p < Results<float>::kParts; ++p)
    pool->add(0, p, relative_error(plain.part[p], expected.part[p]));
  for (c.terms = 3; c.terms > (pool != nullptr ? 0 : 2); --c.terms) {
    const Results<float> found = run_apart(c, kernels, 1, expected);
    const int threads = c.terms + 1;
    if (!found.same_bits(run_apart(c, kernels, threads, expected))) fail("other bits from several threads");
    for (int p = 0; p < Results<float>::kParts; ++p) {
      const long double error = relative_error(found.part[p], expected.part[p]);
      const std::string what = std::string(Results<float>::kNames[p]) + ", terms " + std::to_string(c.terms);
      if (c.terms == 3) compare(what.c_str(), found.part[p], expected.part[p], expected.work(p));
      else hold(what.c_str(), error, c.terms == 2 ? 6e-5L : 4e-2L);
      if (pool != nullptr) pool->add(c.terms, p, error);
    }
  }
}

// What is not wanted is not written, and what is has the bits that it always has.
void check_wanted(const Case<float>& c, const Kernels& kernels) {
  const Results<float> all = run(c, kernels);
  const npu::Parallel parallel = workers(2);
  std::vector<float> y(all.part[0].size());
  kernels.forward({c.inputs(), y.data(), nullptr}, parallel);
  if (!same(y, all.part[0])) fail("y without s");
  for (int p = 2; p < Results<float>::kParts; ++p) {
    if (all.part[p].empty()) continue;
    std::vector<float> wanted(all.part[p].size(), NAN);
    const auto out = [&](int part) { return part == p ? wanted.data() : nullptr; };
    kernels.backward(
        {c.inputs(), c.grad_y.data(), all.part[0].data(), all.part[1].data(), false, out(2), out(3), out(4), out(5)},
        parallel);
    if (!same(wanted, all.part[p])) fail((std::string("alone: ") + Results<float>::kNames[p]).c_str());
  }
}

// The part of one of several models.
std::vector<float> of_model(const std::vector<float>& part, int64_t model, int64_t models) {
  const int64_t size = int64_t(part.size()) / models;
  return {part.begin() + model * size, part.begin() + (model + 1) * size};
}

// What the AVX-512 kernels make of a case, their backward of the y and s that the tiles found.
Results<float> plain_on(const Case<float>& c, const Results<float>& found) {
  Results<float> plain = run(c, kPlain);
  const auto out = [&](int p) { return plain.part[p].empty() ? nullptr : plain.part[p].data(); };
  kPlain.backward(
      {c.inputs(), c.grad_y.data(), found.part[0].data(), found.part[1].data(), false, out(2), out(3), out(4), out(5)},
      workers(1));
  return plain;
}

// Values without terms in the second of two models: it gets the AVX-512 kernels' bits, the first keeps its own.
void check_wild(const Shape& n, const Kernels& kernels) {
  const Case<float> tame(n);
  const Results<float> before = run(tame, kernels), plain_before = run(tame, kPlain);
  if (before.same_bits(plain_before)) fail("the case does not tell tiles from the AVX-512 kernels");
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {inf, -inf, nan, 1e30f, -3.4e38f};
  enum { kX, kRe, kIm, kGate, kGradY, kOperands };
  for (int operand = 0; operand < kOperands; ++operand) {
    for (const float value : values) {
      Case<float> c = tame;
      std::vector<float>* vectors[] = {&c.x, &c.wr, &c.wi, &c.gate, &c.grad_y};
      std::vector<float>& v = *vectors[operand];
      if ((operand == kIm && !n.complex) || (operand == kGate && !n.gated)) continue;
      v[v.size() - 3] = value;
      const Results<float> found = run(c, kernels, 2), plain = plain_on(c, found);
      if (operand == kGradY) {
        std::vector<float> alone(c.x.size());
        kernels.backward({c.inputs(), c.grad_y.data(), found.part[0].data(), found.part[1].data(), false, alone.data(),
                          nullptr, nullptr, nullptr},
                         workers(1));
        if (!same(of_model(alone, 1, 2), of_model(plain.part[2], 1, 2))) fail("a wild model: grad_x alone");
      }
      // Finite inputs and gates have a finite logarithm.
      const bool wild =
          (operand != kX || std::fabs(value) == inf || std::isnan(value)) && (operand != kGate || std::isnan(value));
      for (int p = 0; p < Results<float>::kParts; ++p) {
        if (found.part[p].empty()) continue;
        const std::string what = std::string(Results<float>::kNames[p]) + " with " + std::to_string(value) +
                                 " in operand " + std::to_string(operand);
        if (!same(of_model(found.part[p], 0, 2), of_model(before.part[p], 0, 2)))
          fail(("a tame model beside a wild one: " + what).c_str());
        const bool reached = wild && (operand != kGradY || p >= 2);
        if (reached && !same(of_model(found.part[p], 1, 2), of_model(plain.part[p], 1, 2)))
          fail(("a wild model: " + what).c_str());
      }
    }
  }
}

// Gradients so small that their terms would lose bits are left to the AVX-512 kernels.
void check_tiny(const Shape& n, const Kernels& kernels) {
  Case<float> c(n);
  for (float& g : c.grad_y) g *= 1e-32f;
  const Results<float> found = run(c, kernels), plain = plain_on(c, found);
  for (int p = 2; p < Results<float>::kParts; ++p)
    if (!same(found.part[p], plain.part[p])) fail("tiny gradients");
}

#if defined(NPU_AMX)
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

uint16_t bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return uint16_t(bits >> 16);
}

// Tiles of other sizes than the kernels', any strides, values whose order of rounding shows; by hand.
__attribute__((target("amx-tile,amx-bf16"))) void check_tile_instructions() {
  // C 3 x 2, A 3 x 4 (two pairs of k), B 2 pairs x 2 columns.
  Config config;
  config.rows[0] = 3, config.bytes[0] = 8;
  config.rows[1] = 3, config.bytes[1] = 8;
  config.rows[2] = 2, config.bytes[2] = 8;
  config.rows[3] = 16, config.bytes[3] = 64;
  _tile_loadconfig(&config);
  const float tiny = std::ldexp(1.0f, -70);  // its square is below the least normal number
  const float a_values[3][4] = {{1, 2, 3, 4}, {256, 1, -256, 1}, {tiny, 1, 0, 0}};
  const float b_values[4][2] = {{1, -1}, {0.5f, 2}, {1, 3}, {-2, 0.25f}};  // k x columns
  uint16_t a[3][16] = {}, b[2][8] = {};
  for (int m = 0; m < 3; ++m)
    for (int k = 0; k < 4; ++k) a[m][k] = bf16(a_values[m][k]);
  for (int k = 0; k < 4; ++k)
    for (int n = 0; n < 2; ++n) b[k / 2][2 * n + k % 2] = bf16(b_values[k][n]);
  float c[3][4] = {{10, 20, -1, -1}, {0, 1, -1, -1}, {5, 6, -1, -1}};
  float found[3][4] = {{7, 7, 7, 7}, {7, 7, 7, 7}, {7, 7, 7, 7}};
  __asm__ volatile("" ::: "memory");  // compilers do not know that the tile loads read memory
  _tile_loadd(0, c, 16);
  _tile_loadd(1, a, 32);
  _tile_stream_loadd(2, b, 16);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, found, 16);
  // Row 0: 1 + 1 + 3 - 8 and -1 + 4 + 9 + 1. Row 1: 256 + .5 - 256 - 2 and -256 + 2 - 768 + .25.
  // Row 2: 2^-70 + .5 and -2^-70 + 2. The third and fourth columns are not the tile's.
  const float expected[3][4] = {{10 - 3, 20 + 13, 7, 7}, {-1.5f, 1 - 1021.75f, 7, 7}, {5.5f, 8, 7, 7}};
  if (std::memcmp(found, expected, sizeof found) != 0) fail("emulator: a product");

  // Even and odd k are chains of their own: 2^24 + 1 in one chain would be 2^24. And denormal products are zero.
  const float big = std::ldexp(1.0f, 24);
  const float a_order[3][4] = {{big, 1, -big, 0}, {tiny, 0, tiny, 0}, {0, 0, 0, 0}};
  const float b_order[4][2] = {{1, tiny}, {1, tiny}, {1, tiny}, {1, tiny}};
  for (int m = 0; m < 3; ++m)
    for (int k = 0; k < 4; ++k) a[m][k] = bf16(a_order[m][k]);
  for (int k = 0; k < 4; ++k)
    for (int n = 0; n < 2; ++n) b[k / 2][2 * n + k % 2] = bf16(b_order[k][n]);
  __asm__ volatile("" ::: "memory");
  _tile_zero(0);
  _tile_loadd(1, a, 32);
  _tile_loadd(2, b, 16);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, found, 16);
  const float ordered[3][4] = {{1, tiny, 7, 7}, {2 * tiny, 0, 7, 7}, {0, 0, 7, 7}};
  if (std::memcmp(found, ordered, sizeof found) != 0) fail("emulator: the order of rounding, or denormals");

  // Addresses: scaled index, displacements, many base registers; negative strides.
  float rows[48][16], back[48][16] = {};
  for (int r = 0; r < 48; ++r)
    for (int n = 0; n < 16; ++n) rows[r][n] = float(r * 16 + n);
  __asm__ volatile("" ::: "memory");
  const long stride = 16, reversed = -64;
  __asm__ volatile(
      "mov %0, %%r13\n\tmov %1, %%r12\n\t"
      "tileloadd 1024(%%r13,%%r12,4), %%tmm3\n\t"
      "mov %2, %%r13\n\t"
      "tilestored %%tmm3, 64(%%r13,%%r12,4)\n\t" ::"r"(rows),
      "r"(stride), "r"(back)
      : "r12", "r13", "memory");
  if (std::memcmp(back[1], rows[16], sizeof(float[16][16])) != 0) fail("emulator: addresses");
  _tile_loadd(3, rows[15], reversed);
  _tile_stored(3, back, 64);
  for (int r = 0; r < 16; ++r)
    if (std::memcmp(back[r], rows[15 - r], 64) != 0) return fail("emulator: a negative stride");
  _tile_release();
}
#endif

// Every slice once, in the order of its job; spread evenly over the steps, and the rest by finish().
void check_side_work() {
  struct Job {
    std::vector<int>* done;
    int number;
    void next() { done->push_back(number++); }
  };
  for (const int64_t steps : {0, 1, 3, 24, 100}) {
    for (const int64_t count : {0, 1, 7, 24, 60}) {
      std::vector<int> done;
      Job first{&done, 0}, second{&done, 1000};
      npu::baseline::SideWork side;
      for (int round = 0; round < 2; ++round) {
        side.add(first, count);
        side.add(second, 2);
        side.spread_over(steps);
        const size_t before = done.size();
        for (int64_t i = 0; i < steps; ++i) {
          side.step();
          const double even = double(i + 1) * double(count + 2) / double(steps);
          if (std::fabs(double(done.size() - before) - even) > 1.5 + even * .2) fail("side work: not even");
        }
        side.finish();
      }
      std::vector<int> expected;
      for (int round = 0; round < 2; ++round) {
        for (int n = 0; n < count; ++n) expected.push_back(int(round * count) + n);
        for (int n = 0; n < 2; ++n) expected.push_back(1000 + round * 2 + n);
      }
      if (done != expected) fail("side work: other slices");
    }
  }
  std::vector<int> done;
  Job shared{&done, 0};
  npu::baseline::SideWork side;
  for (int64_t i = 0; i < 7; ++i) {
    side.add_share(shared, 17, i, 7);
    side.finish();
    if (int64_t(done.size()) != 17 * (i + 1) / 7) fail("side work: shares");
  }
}

bool prepare(const std::string& isa, Kernels& kernels) {
#if defined(NPU_AVX512_BF16)
  if (!npu::set_isa("avx512_bf16")) return false;  // the splits need it on either engine
  if (isa == "avx512_bf16") kernels = {npu::avx512_bf16::npu_forward, npu::avx512_bf16::npu_backward};
#endif
#if defined(NPU_AMX)
  if (isa == "amx") {
    kernels = {npu::amx::npu_forward, npu::amx::npu_backward};
    if (!amx_emulator::native()) amx_emulator::install();
    check_tile_instructions();
  }
#endif
  return kernels.forward != nullptr;
}

}  // namespace

int main(int count, char** names) {
  const std::string isa = count > 1 ? names[1] : "avx512_bf16";
  check_side_work();
  Kernels kernels{};
  if (!prepare(isa, kernels)) {
    std::printf("%s is not supported by this processor, or not compiled\n", isa.c_str());
    return 77;
  }
  if (count > 2) limit = std::atoll(names[2]);
  // Models, rows, inputs, outputs; around the tiles' 16 and 32, 256 or 512 inputs, outputs or rows of a block, and
  // groups.
  const int64_t sizes[][4] = {
      {1, 0, 33, 20},   {1, 1, 1, 1},      {1, 31, 33, 18},    {2, 20, 31, 15},   {1, 64, 64, 64},  {1, 70, 96, 40},
      {3, 40, 40, 33},  {1, 200, 130, 47}, {1, 100, 200, 100}, {1, 137, 300, 17}, {1, 40, 33, 290}, {1, 270, 33, 290},
      {1, 530, 40, 20}, {2, 1100, 24, 17}, {1, 290, 280, 20},  {1, 300, 290, 70}, {1, 40, 33, 530}, {1, 40, 530, 33}};
  Pool pool;
  bool emulated = false;  // each tile instruction takes microseconds then
#if defined(NPU_AMX)
  emulated = isa == "amx" && !amx_emulator::native();
#endif
  for (const auto& size : sizes) {
    const int64_t work = size[0] * size[1] * size[2] * size[3];
    if (work > limit) continue;
    for (int bits = 0; bits < 16; ++bits) {
      // Every property comes both ways in 0, 3, 6, 9, 12, 15, and in 3 and 12 alone.
      if (work > 100000 && (bits % 3 != 0 || (emulated && bits != 3 && bits != 12))) continue;
      const Shape n{size[0],         size[1],         size[2],         size[3],
                    (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
      const int before = failures;
      // Blocks of a large layer do not depend on the number of terms.
      check_errors(n, kernels, 1, bits >= 12, emulated && work > 100000 ? nullptr : &pool);
      if (work < 100000) {
        check_errors(n, kernels, 1e-25, false, &pool);
        check_wanted(Case<float>(n), kernels);
      }
      if (size[1] == 20 && !n.shared_x) check_wild(n, kernels);
      if (size[1] == 31) check_tiny(n, kernels);
      if (failures > before)
        std::printf("  at K %ld B %ld I %ld O %ld shared %d complex %d gated %d negative %d\n", long(n.models),
                    long(n.rows), long(n.in), long(n.out), n.shared_x, n.complex, n.gated, n.negative);
    }
  }
  pool.check();
#if defined(NPU_AMX)
  if (isa == "amx") {
    std::printf("%ld tile instructions emulated\n", amx_emulator::count());
    if (!amx_emulator::native() && amx_emulator::count() == 0) fail("nothing was emulated");
  }
#endif
  std::printf("%s: %d failures\n", isa.c_str(), failures);
  return failures ? 1 : 0;
}
