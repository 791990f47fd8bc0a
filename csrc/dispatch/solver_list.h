// All solvers.
#pragma once

#include <string_view>
#include <vector>

#include "conv/solver.h"

namespace reformer {

// In the order in which ties are broken. The first solver applies to every problem.
const std::vector<const Solver*>& solvers();

// The solver of this name, or null.
const Solver* find_solver(std::string_view name);

}  // namespace reformer
