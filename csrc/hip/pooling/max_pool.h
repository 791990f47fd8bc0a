// Max pooling on a GPU: how its kernels are launched, without a GPU.
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
  MaxPoolArgs args{};  // but for the pointers
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// For images of this type and layout. Or the reason why no kernel does it.
Planned<MaxPoolConfig> configure_max_pool(bool is_forward, DType type, Layout layout, int64_t images, int64_t channels,
                                          const PoolSizes& rows, const PoolSizes& columns, const std::string& arch);

}  // namespace reformer
