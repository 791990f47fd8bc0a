// Sequences of operators (sequence.h) as one.
#pragma once

#include <vector>

#include "tensors.h"

namespace reformer {

// The outputs of a kept sequence, by its number.
std::vector<Tensor> run_sequence(const std::vector<Tensor>& tensors, int64_t sequence);

}  // namespace reformer
