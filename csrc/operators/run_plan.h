// Plans of operators (plan/plan.h) as one.
#pragma once

#include <vector>

#include "tensors.h"

namespace reformer {

// The outputs of a plan, by its number (plan/interned.h). The tensors are taken over, so that the plan frees its
// references to them, too. Throws std::runtime_error with a sentence, which names the step that failed.
std::vector<Tensor> run_plan(std::vector<Tensor>& tensors, int64_t plan);

}  // namespace reformer
