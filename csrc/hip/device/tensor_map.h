// How Hopper's bulk copy engine finds a matrix in global memory: 128 bytes that the driver makes (gpu::tensor_map) and
// that a kernel gets among its arguments.
#pragma once

namespace reformer {

struct alignas(64) TensorMap {
  unsigned long long words[16];
};

}  // namespace reformer
