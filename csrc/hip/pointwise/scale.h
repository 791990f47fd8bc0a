// Multiplying a tensor in place by a number on the GPU: how its kernel is launched, without a GPU.
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

// For so many elements that begin at a multiple of `alignment` bytes. Or the reason why no kernel does it.
Planned<ScaleConfig> configure_scale(DType type, DType factor, int64_t count, int64_t alignment,
                                     const std::string& arch);

}  // namespace reformer
