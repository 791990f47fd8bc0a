// Casts of many tensors at once.
#pragma once

#include <vector>

#include "tensors.h"

namespace reformer {

// Writes each tensor to the one at the same place of `to`, in that one's data type. That may have more along its first
// dimension, which becomes 0. On a GPU all in one kernel, but for those of other types than the first, or in another
// order of memory than what they are written to, which PyTorch's own operators copy.
void cast_all(std::vector<Tensor>& from, std::vector<Tensor>& to);

}  // namespace reformer
