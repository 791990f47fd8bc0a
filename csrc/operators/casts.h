// Casts of many tensors at once.
#pragma once

#include <vector>

#include "tensors.h"

namespace reformer {

// Copies each tensor to the one at the same index of `to`, cast to its data type. The latter may be longer along its
// first dimension; the extra elements become 0. On a GPU one kernel copies all, except tensors whose type differs from
// the first one's or whose memory format differs from the destination's; PyTorch's own operators copy those.
void cast_all(std::vector<Tensor>& from, std::vector<Tensor>& to);

}  // namespace reformer
