// A failed allocation says so, whoever made it: torch passes on what an exception says, and std::bad_alloc says its
// name.
#pragma once

#include <cstdint>
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

// An operator's function as torch calls it: reading the arguments takes memory too.
template <auto boxed, typename Value>
void naming_memory(Value* stack, uint64_t inputs, uint64_t outputs) {
  naming_memory([&] { boxed(stack, inputs, outputs); });
}

}  // namespace npu
