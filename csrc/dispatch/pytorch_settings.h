// PyTorch's settings for its convolutions on GPUs. torch's stable ABI does not expose them, so reader functions are
// registered: by Python, or by the library for the installed torch (csrc/aten), which is faster.
#pragma once

#include <cstdint>

#include "device.h"

namespace reformer {

using SettingReader = int32_t (*)();  // returns 1 or 0; called from any thread

// True if fp32 may be rounded to tf32: torch.backends.cudnn.conv.fp32_precision, or the older
// torch.backends.cudnn.allow_tf32. Asked before every choice for fp32 on an NVIDIA GPU.
void set_tf32_reader(SettingReader reader);
// True if results have to repeat bit for bit: torch.use_deterministic_algorithms or torch.backends.cudnn.deterministic.
// Asked before every choice on an AMD GPU because of the vendor's kernels; this package's own kernels always repeat.
void set_deterministic_reader(SettingReader reader);

// The current settings for the device; false as long as no reader is registered.
bool allows_tf32(const Device& device);
bool asks_for_determinism(const Device& device);

}  // namespace reformer
