// Running plans of operators (plan/plan.h).
#pragma once

#include <vector>

#include "tensors.h"

namespace reformer {

// The outputs of the plan of this number (plan/interned.h). Takes ownership of the tensors, so that the plan can free
// its inputs, too. Throws std::runtime_error whose message names the failed step.
std::vector<Tensor> run_plan(std::vector<Tensor>& tensors, int64_t plan);

// Running a plan in two calls. The caller of an operator holds references to its tensors until it returns; between the
// two calls it can release them, so that the plan can free its inputs, too. The number returned by hold_tensors is
// valid for one run.
int64_t hold_tensors(std::vector<Tensor>& tensors);
std::vector<Tensor> run_plan_of_held(int64_t held, int64_t plan);

}  // namespace reformer
