// The instruction sets of one run of a test: what is right is worked out once for all of them.
#pragma once

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "layers.h"

inline int failures = 0;
inline std::vector<const char*> isas;
// Of the work of one case. A sanitizer's build is some thirty times slower and is given one.
inline int64_t limit = std::numeric_limits<int64_t>::max();

// Words are instruction sets (none: the one in use), a number is the limit. False: this processor has none of them.
inline bool read_arguments(int count, char** words) {
  bool named = false;
  for (int n = 1; n < count; ++n) {
    if (std::isdigit(static_cast<unsigned char>(words[n][0]))) {
      limit = std::atoll(words[n]);
    } else {
      named = true;
      if (npu::set_isa(words[n])) isas.push_back(words[n]);
      else std::printf("%s is not supported by this processor\n", words[n]);
    }
  }
  if (!named && *npu::supported_isas() != '\0') isas.push_back(npu::isa());
  return !isas.empty();
}

template <typename Check>
void on_each_isa(const Check& check) {
  for (const char* isa : isas) {
    const int before = failures;
    npu::set_isa(isa);
    check();
    if (failures > before) std::printf("  on %s\n", isa);
  }
}

// The exit code.
inline int report() {
  for (const char* isa : isas) std::printf("%s: tested\n", isa);
  std::printf("%d failures\n", failures);
  return failures ? 1 : 0;
}
