// A failed allocation says so, whoever made it: torch passes on what an exception says, and std::bad_alloc says its
// name.
#pragma once

#include <new>
#include <typeinfo>

#include "core/api.h"

namespace npu {

template <typename F>
auto naming_memory(F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc& error) {
    if (typeid(error) != typeid(std::bad_alloc)) throw;
    out_of_memory();
  }
}

}  // namespace npu
