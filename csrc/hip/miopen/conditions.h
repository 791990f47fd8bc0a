// Which of MIOpen's solvers may be tried for a problem, by what its sources say.
#pragma once

#include <string>

#include "solver_table.h"

namespace reformer::miopen {

// Null, or the reason why the solver is not offered. For Check::asked null means only that MIOpen may be asked;
// for Check::ruled it means that the solver applies. `arch` may have features, as in gfx90a:sramecc+:xnack-.
const char* unsupported(const MiopenSolver& solver, const ConvProblem& problem, const std::string& arch,
                        bool deterministic);

}  // namespace reformer::miopen
