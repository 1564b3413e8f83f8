// Errors of log, exp and sincos against long double, as the table in core/simd/vector_math.h states them.
#include "core/simd/vector_math.h"

#include <cstdio>
#include <random>

using namespace npu::NPU_ISA;

namespace {

int failures = 0;

void expect(bool holds, const char* what, double value) {
  if (holds) return;
  std::printf("FAILED: %s (%g)\n", what, value);
  ++failures;
}

// |got - exact| in units of the last place of the exact value (of the smallest normal's binade for subnormals).
template <typename T>
double error_in_ulp(T got, long double exact) {
  if (std::isinf(exact) || (long double)(T)exact == (long double)got) {
    if (std::isinf((T)exact)) return std::isinf(got) && (got > 0) == (exact > 0) ? 0 : 1e9;
    if (std::isinf(exact)) return 0;
  }
  int exponent;
  std::frexp(exact, &exponent);
  exponent = std::max(exponent, std::numeric_limits<T>::min_exponent);
  return double(fabsl((long double)got - exact) / ldexpl(1.0L, exponent - std::numeric_limits<T>::digits));
}

template <typename T, typename Draw, typename Function, typename Exact>
double worst_error(Draw draw, Function function, Exact exact, int registers = 60000) {
  using S = Simd<T>;
  double worst = 0;
  for (int n = 0; n < registers; ++n) {
    T in[S::width], out[S::width];
    for (T& v : in) v = draw();
    S::store(out, function(S::load(in)));
    for (int l = 0; l < S::width; ++l) {
      const double error = error_in_ulp<T>(out[l], exact((long double)in[l]));
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

template <typename T>
void special_values(const char* type) {
  using S = Simd<T>;
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const auto log1 = [](T v) { return (T)VectorMath<T>::log(S::set1(v))[0]; };
  const auto exp1 = [](T v) { return (T)VectorMath<T>::exp(S::set1(v))[0]; };
  const auto sincos1 = [](T v, bool sine) {
    typename S::Reg s, c;
    VectorMath<T>::sincos(S::set1(v), &s, &c);
    return (T)(sine ? s : c)[0];
  };
  std::printf("%s special values\n", type);
  expect(log1(1) == 0, "log 1 = 0", log1(1));
  expect(log1(inf) == inf, "log inf = inf", log1(inf));
  expect(std::isnan(log1(nan)), "log nan = nan", log1(nan));
  expect(exp1(0) == 1, "exp 0 = 1", exp1(0));
  expect(exp1(inf) == inf, "exp inf = inf", exp1(inf));
  expect(exp1(-inf) == 0, "exp -inf = 0", exp1(-inf));
  expect(exp1(T(1e5)) == inf, "exp 1e5 = inf", exp1(T(1e5)));
  expect(std::isnan(exp1(nan)), "exp nan = nan", exp1(nan));
  for (bool sine : {true, false}) {
    expect(std::isnan(sincos1(inf, sine)), "sincos inf = nan", sine);
    expect(std::isnan(sincos1(-inf, sine)), "sincos -inf = nan", sine);
    expect(std::isnan(sincos1(nan, sine)), "sincos nan = nan", sine);
  }
  expect(sincos1(0, true) == 0 && sincos1(0, false) == 1, "sincos 0 = 0, 1", 0);
}

template <typename T>
void accuracy(const char* type, T sincos_range) {
  using S = Simd<T>;
  std::mt19937_64 random(1);
  using Int = typename S::Int;
  // Uniform in the bits: every exponent is as likely as any other.
  const auto any_positive = [&] {
    T v;
    do {
      const Int bits = Int(random()) & ~(Int(1) << (8 * sizeof(Int) - 1));
      std::memcpy(&v, &bits, sizeof v);
    } while (!std::isnormal(v));
    return v;
  };
  const auto uniform = [&](double lo, double hi) {
    return [&random, lo, hi] { return T(std::uniform_real_distribution<double>(lo, hi)(random)); };
  };
  const auto log = [](auto v) { return VectorMath<T>::log(v); };
  const auto exp = [](auto v) { return VectorMath<T>::exp(v); };
  const auto sine = [](auto v) {
    typename S::Reg s, c;
    VectorMath<T>::sincos(v, &s, &c);
    return s;
  };
  const auto cosine = [](auto v) {
    typename S::Reg s, c;
    VectorMath<T>::sincos(v, &s, &c);
    return c;
  };
  const double limit = sizeof(T) == 4 ? 104 : 746;
#if defined(__AVX512F__)
  constexpr double log_bound = 1.1, exp_bound = 1.1, near_zero_bound = 1.1;  // by tables
#else
  constexpr double log_bound = 1.0, exp_bound = sizeof(T) == 4 ? 1.1 : 1.0, near_zero_bound = 1.0;
#endif
  struct Row {
    const char* name;
    double error, bound;
  };
  const Row rows[] = {
      {"log, all normal numbers", worst_error<T>(any_positive, log, [](long double v) { return logl(v); }), log_bound},
      {"log, [0.5, 2]", worst_error<T>(uniform(0.5, 2), log, [](long double v) { return logl(v); }), log_bound},
      {"log, near 1", worst_error<T>(uniform(0.999, 1.001), log, [](long double v) { return logl(v); }), 0.6},
      {"exp, all of its range", worst_error<T>(uniform(-limit, limit), exp, [](long double v) { return expl(v); }),
       exp_bound},
      {"exp, [-1, 1]", worst_error<T>(uniform(-1, 1), exp, [](long double v) { return expl(v); }), near_zero_bound},
      {"sin, [-4, 4]", worst_error<T>(uniform(-4, 4), sine, [](long double v) { return sinl(v); }), 1.5},
      {"cos, [-4, 4]", worst_error<T>(uniform(-4, 4), cosine, [](long double v) { return cosl(v); }), 1.5},
      {"sin, all of its range",
       worst_error<T>(uniform(-sincos_range, sincos_range), sine, [](long double v) { return sinl(v); }), 1.5},
      {"cos, all of its range",
       worst_error<T>(uniform(-sincos_range, sincos_range), cosine, [](long double v) { return cosl(v); }), 1.5},
      {"cos, beyond it",
       worst_error<T>(
           uniform(sincos_range, 1e3 * sincos_range), cosine, [](long double v) { return cosl(v); }, 500),
       1.5},
  };
  for (const Row& row : rows) {
    std::printf("%s %-24s %.3f ulp\n", type, row.name, row.error);
    expect(row.error <= row.bound, row.name, row.error);
  }
}

template <typename T>
void layouts(const char* type) {
  using S = Simd<T>;
  constexpr int W = S::width;
  typename S::Reg r[W], sums[W];
  for (int n = 0; n < W; ++n)
    for (int l = 0; l < W; ++l) r[n][l] = sums[n][l] = T(n * W + l);
  S::transpose(r);
  for (int n = 0; n < W; ++n)
    for (int l = 0; l < W; ++l) expect(r[n][l] == T(l * W + n), type, l * W + n);
  const typename S::Reg total = S::sum_each(sums);
  for (int n = 0; n < W; ++n) expect(total[n] == T(n * W * W + W * (W - 1) / 2), "sum_each", n);
}

}  // namespace

int main() {
  // An executable of this instruction set may not even start its work on a lesser processor.
#if defined(__AVX512F__)
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq")) return 77;
#elif defined(__AVX2__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 77;
#endif
  layouts<float>("float layout");
  layouts<double>("double layout");
  special_values<float>("float");
  special_values<double>("double");
  accuracy<float>("float ", 1e5f);
  accuracy<double>("double", 1e6);
  return failures ? 1 : 0;
}
