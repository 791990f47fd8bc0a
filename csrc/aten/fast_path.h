// The eager fast path: calls that nobody looks at but autograd and autocast.
#pragma once

#include <ATen/core/Tensor.h>

namespace reformer {

// True if this thread neither traces nor transforms operators, and no mode sees them.
bool is_eager();

// True if autograd records what this thread computes: not in inference mode, nor below autograd.
bool records_gradients();

// True if this is a dense tensor of a CPU or a GPU, not lazily conjugated or negated, of no batch and with no tangent;
// undefined tensors are.
bool is_plain(const at::Tensor& tensor);

}  // namespace reformer
