// PyTorch's setting of how its fp32 convolutions may compute on NVIDIA's GPUs:
// torch.backends.cudnn.conv.fp32_precision, or torch.backends.cudnn.allow_tf32 of old. torch's stable ABI does not show
// it, so Python gives a function that does.
#pragma once

#include <cstdint>

#include "device.h"

namespace reformer {

// Asked before every choice for fp32 on such a GPU, in any thread: whether tf32 is allowed.
using Tf32Reader = int32_t (*)();
void set_tf32_reader(Tf32Reader reader);

// Whether the setting allows tf32 now, on a GPU that has it; not as long as nobody can read it.
bool allows_tf32(const Device& device);

}  // namespace reformer
