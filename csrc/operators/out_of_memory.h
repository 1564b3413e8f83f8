// An error of a failed allocation that names memory: torch shows only the text of an exception, and that of
// std::bad_alloc is its name. An exception of a class derived from it has a text of its own and passes.
#pragma once

#include <cstdint>
#include <new>
#include <typeinfo>

#include "api.h"

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
