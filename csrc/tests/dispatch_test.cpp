// A library for instruction sets that the processor lacks says so, in place of running into an illegal instruction.
#undef NPU_BASELINE
#define __builtin_cpu_supports(name) false
#include "core/dispatch.cpp"

#include <cstdio>

int main() {
  int failures = 0;
  const auto expect = [&failures](bool holds, const char* what) {
    if (!holds) std::printf("FAILED: %s\n", what);
    failures += !holds;
  };
  expect(std::strcmp(npu::supported_isas(), "") == 0, "no instruction set is supported");
  const std::string least = npu::isa();
  expect(least == "avx2" || least == "avx512", "the least instruction set of the library is named");
  expect(!npu::set_isa(npu::isa()), "it cannot be chosen");
  try {
    npu::kernels<float>();
    expect(false, "there are no kernels");
  } catch (const std::runtime_error& error) {
    expect(std::strstr(error.what(), least.c_str()) != nullptr, "the error names the least instruction set");
  }
  return failures;
}
