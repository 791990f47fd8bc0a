// Copies to another memory format.
#pragma once

#include "tensors.h"

namespace reformer {

// A dense copy in the order of the dimensions. PyTorch's own copy is used where no kernel supports it.
Tensor contiguous_copy(const Tensor& tensor);

}  // namespace reformer
