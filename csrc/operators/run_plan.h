// Plans of operators (plan/plan.h) as one.
#pragma once

#include <vector>

#include "tensors.h"

namespace reformer {

// The outputs of a plan, by its number (plan/interned.h). The tensors are taken over, so that the plan frees its
// references to them, too. Throws std::runtime_error, whose message names the step that failed.
std::vector<Tensor> run_plan(std::vector<Tensor>& tensors, int64_t plan);

// Running a plan in two calls. Whoever calls an operator with tensors refers to them until it returns; in between they
// can be let go of, so that a plan frees what it is given, too. The number that the first gives is good for one run.
int64_t hold_tensors(std::vector<Tensor>& tensors);
std::vector<Tensor> run_plan_of_held(int64_t held, int64_t plan);

}  // namespace reformer
