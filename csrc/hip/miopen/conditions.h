// Which of MIOpen's solvers may be tried for a problem, according to MIOpen's sources.
#pragma once

#include <string>

#include "solver_table.h"

namespace reformer::miopen {

// The reason why the solver is not offered, or null. For Check::asked, null means only that MIOpen may be asked; for
// Check::ruled, that the solver applies. `arch` may have features, as in gfx90a:sramecc+:xnack-.
const char* unsupported(const MiopenSolver& solver, const ConvProblem& problem, const std::string& arch,
                        bool deterministic);

}  // namespace reformer::miopen
