// Which kernels compute a matrix product with a program, where no selector of products decides.
#pragma once

#include <vector>

#include "conv/solver.h"

namespace reformer {

// Solvers that may compute the product with a program, the one that is expected to be the fastest first.
std::vector<const Solver*> product_solvers(const ConvProblem& problem);

}  // namespace reformer
