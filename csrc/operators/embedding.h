// Operators of embeddings.
#pragma once

#include "tensors.h"

namespace reformer {

// The gradient of a table of `rows` rows, of which `ids` has looked some up, in any sizes: grad has these and a table's
// columns. The id `padding` has none (-1: all have one); by_frequency: each row's is divided by how often it was looked
// up. By PyTorch's own operator where no kernel does it.
Tensor embedding_grad(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding, bool by_frequency);

}  // namespace reformer
