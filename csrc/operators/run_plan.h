// Plans of operators (plan.h) as one.
#pragma once

#include <vector>

#include "tensors.h"

namespace reformer {

// The outputs of a plan, by its number (plan/interned.h).
std::vector<Tensor> run_plan(const std::vector<Tensor>& tensors, int64_t plan);

}  // namespace reformer
