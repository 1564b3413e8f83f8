// What the user allows float32 products on the CPU to be made of: npu::NpuInputs::terms of every call.
#pragma once

namespace npu {

// Of the setting in force now; 3, full float32, while nobody has said how to read it.
__attribute__((visibility("default"))) int float_terms();

// The function that reads the setting. Torch's stable interface has none, so csrc/direct brings it.
__attribute__((visibility("default"))) void read_float_terms_by(int (*read)());

}  // namespace npu
