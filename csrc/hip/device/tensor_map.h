// Describes a matrix in global memory for Hopper's bulk copy engine: 128 bytes that the driver makes (gpu::tensor_map)
// and that a kernel gets as part of its arguments.
#pragma once

namespace reformer {

struct alignas(64) TensorMap {
  unsigned long long words[16];
};

}  // namespace reformer
