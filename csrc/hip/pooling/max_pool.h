// Max pooling on a GPU: launch configurations of the kernels, independent of a GPU.
#pragma once

#include <string>

#include "jit/gpu.h"
#include "max_pool_args.h"
#include "planned.h"
#include "types.h"

namespace reformer {

// Along the rows of images, or along their columns.
struct PoolSizes {
  int64_t size, outputs, window, stride, padding, dilation;
};

struct MaxPoolConfig {
  MaxPoolArgs args{};  // except for the pointers
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// Configuration for images of this type and layout; or the reason why no kernel supports them.
Planned<MaxPoolConfig> configure_max_pool(bool is_forward, DType type, Layout layout, int64_t images, int64_t channels,
                                          const PoolSizes& rows, const PoolSizes& columns, const std::string& arch);

}  // namespace reformer
