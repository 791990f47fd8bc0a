// Calls of operators by PyTorch's dispatcher, and views without it: what plans do with tensors besides this package's
// operators.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "tensors.h"

namespace reformer {

// Calls the operator with tensors of `there` by their numbers, and appends what it gives. stack: call.words() words,
// whatever they hold. Throws std::runtime_error with PyTorch's message, where torch tells it (2.13), or if a list of
// results has another length.
void call_aten(const AtenCall& call, const std::vector<int32_t>& inputs, std::vector<Tensor>& there,
               StableIValue* stack);

// Throws std::runtime_error if it reaches beyond the tensor's storage.
Tensor view_of(const Tensor& tensor, const ViewStep& view);

}  // namespace reformer
