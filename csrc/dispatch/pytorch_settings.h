// PyTorch's settings of how its convolutions on GPUs may compute. torch's stable ABI does not show them, so whoever
// sees them gives functions that do: Python, or the library for the torch at hand (csrc/aten), which takes less time.
#pragma once

#include <cstdint>

#include "device.h"

namespace reformer {

using SettingReader = int32_t (*)();  // 1 or 0, asked in any thread

// torch.backends.cudnn.conv.fp32_precision, or torch.backends.cudnn.allow_tf32 of old: whether fp32 may be rounded to
// tf32. Asked before every choice for fp32 on an NVIDIA GPU.
void set_tf32_reader(SettingReader reader);
// torch.use_deterministic_algorithms or torch.backends.cudnn.deterministic: whether results have to repeat bit for bit.
// Asked before every choice on an AMD GPU, for the vendor's kernels; this package's own repeat anyhow.
void set_deterministic_reader(SettingReader reader);

// The settings of now for the device; false as long as nobody can read them.
bool allows_tf32(const Device& device);
bool asks_for_determinism(const Device& device);

}  // namespace reformer
