// Scaling in place.
#pragma once

#include "tensors.h"

namespace reformer {

// Multiplies a dense tensor by another one's one element and returns it. Where that is 1, nothing is done, whatever the
// tensor holds. By PyTorch's own operator where no kernel does it.
Tensor scale_in_place(Tensor tensor, const Tensor& factor);

}  // namespace reformer
