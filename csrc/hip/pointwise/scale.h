// Multiplies a tensor in place by a number on the GPU: launch configuration of the kernel, independent of a GPU.
#pragma once

#include "jit/gpu.h"
#include "planned.h"
#include "scale_args.h"
#include "types.h"

namespace reformer {

struct ScaleConfig {
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// Configuration for `count` elements, aligned to `alignment` bytes; or the reason why no kernel supports it.
Planned<ScaleConfig> configure_scale(DType type, DType factor, int64_t count, int64_t alignment,
                                     const std::string& arch);

}  // namespace reformer
