// The eager fast path: calls that only autograd and autocast intercept.
#pragma once

#include <ATen/core/Tensor.h>

namespace reformer {

// True if this thread neither traces nor transforms operators and no dispatch mode is active.
bool is_eager();

// True if autograd records this thread's operations: not in inference mode and not below autograd.
bool records_gradients();

// True if this is a dense CPU or GPU tensor, not lazily conjugated or negated, without batching and without a tangent.
// Undefined tensors count as plain.
bool is_plain(const at::Tensor& tensor);

}  // namespace reformer
