// The precision that the user allows for float32 products on the CPU: npu::NpuInputs::terms of every call.
#pragma once

namespace npu {

// The terms of the current setting; 3, full float32, until a function that reads it is set.
__attribute__((visibility("default"))) int float_terms();

// The function that reads the setting. Torch's stable interface has none, so csrc/fast_path brings it.
__attribute__((visibility("default"))) void read_float_terms_by(int (*read)());

}  // namespace npu
