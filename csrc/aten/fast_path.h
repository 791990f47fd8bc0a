// The eager fast path: calls that nobody looks at but autograd and autocast.
#pragma once

#include <ATen/core/Tensor.h>

namespace reformer {

// Whether this thread neither traces nor transforms operators, and no mode sees them.
bool is_eager();

// Whether autograd records what this thread computes: not in inference mode, nor below autograd.
bool records_gradients();

// Whether this is a dense tensor of a CPU or a GPU, not lazily conjugated or negated, of no batch and with no tangent;
// undefined tensors are.
bool is_plain(const at::Tensor& tensor);

}  // namespace reformer
