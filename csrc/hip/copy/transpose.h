// Copies to another memory format on a GPU: launch configuration of the kernel, independent of a GPU.
#pragma once

#include <cstdint>

#include "jit/gpu.h"
#include "planned.h"
#include "transpose_args.h"

namespace reformer {

struct TransposeConfig {
  TransposeArgs args{};  // except for the pointers
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// Configuration for a tensor of these sizes and strides, with `bytes` bytes per element and aligned to `alignment`
// bytes, which is copied to a dense tensor in the order of its dimensions; or the reason why no kernel supports it.
Planned<TransposeConfig> configure_transpose(const int64_t* sizes, const int64_t* strides, int64_t dimensions,
                                             int64_t bytes, int64_t alignment);

}  // namespace reformer
