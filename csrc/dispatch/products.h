// Which kernels compute a matrix product with a program, where no selector knows them.
#pragma once

#include <vector>

#include "conv/solver.h"

namespace reformer {

// True for a matrix product: the 1x1 convolution of one image of one pixel a row, in NHWC, or its input gradient, which
// reads the second factor in the other order.
bool is_product(const ConvProblem& problem);

// Solvers that may compute the product with a program, the one that is expected to be the fastest first.
std::vector<const Solver*> product_solvers(const ConvProblem& problem);

}  // namespace reformer
