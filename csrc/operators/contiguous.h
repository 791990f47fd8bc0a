// Copies in another order of memory.
#pragma once

#include "tensors.h"

namespace reformer {

// A copy whose elements are dense in the order of the dimensions. By PyTorch's own where no kernel does it.
Tensor contiguous_copy(const Tensor& tensor);

}  // namespace reformer
