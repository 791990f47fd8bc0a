// Copies in another order of memory on a GPU: how their kernel is launched, without a GPU.
#pragma once

#include <cstdint>

#include "jit/gpu.h"
#include "planned.h"
#include "transpose_args.h"

namespace reformer {

struct TransposeConfig {
  TransposeArgs args{};  // but for the pointers
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// For a tensor of these sizes and strides and of elements of so many bytes, which begins at a multiple of `alignment`
// bytes, copied to one that is dense in the order of its dimensions. Or the reason why no kernel does it.
Planned<TransposeConfig> configure_transpose(const int64_t* sizes, const int64_t* strides, int64_t dimensions,
                                             int64_t bytes, int64_t alignment);

}  // namespace reformer
