// Scaling in place.
#pragma once

#include "tensors.h"

namespace reformer {

// Multiplies a dense tensor by the only element of `factor` and returns it. If the factor is 1, nothing is done,
// whatever the tensor holds. PyTorch's own operator is used where no kernel supports it.
Tensor scale_in_place(Tensor tensor, const Tensor& factor);

}  // namespace reformer
