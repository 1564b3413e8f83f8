// What each sanitizer has to find: a build in which it finds nothing says nothing of the other tests.
//
//   mistakes address | undefined | thread
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "workers.h"

int main(int count, char** names) {
  const char* sanitizer = count > 1 ? names[1] : "";
  const std::vector<int> array(3);
  const volatile int behind = 3, largest = std::numeric_limits<int>::max();
  int found = 0;
  if (std::strcmp(sanitizer, "address") == 0) found = array.data()[behind];
  if (std::strcmp(sanitizer, "undefined") == 0) found = largest + 1;
  if (std::strcmp(sanitizer, "thread") == 0) workers(3).over(1000, [&](int64_t, int64_t) { ++found; });
  std::printf("nothing was found: %d\n", found);
  return 0;
}
