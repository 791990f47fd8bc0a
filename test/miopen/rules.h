// To which problems a solver is applicable, and how much workspace it asks for.
#pragma once

#include <string>

#include "problem.h"
#include "solvers.h"

namespace stub {

bool is_applicable(const Solver& solver, const Problem& problem, const std::string& architecture);
size_t workspace_bytes(const Solver& solver, const Problem& problem);

// Lines of a find-db, KEY=NAME;NAME or KEY=NAME:MILLISECONDS,BYTES,...;...: to the problem of that key exactly these
// solvers are applicable, and they ask for that many bytes if it is said. The key * stands for those that no line has;
// without it they are by rule. Another call forgets the lines of the last.
void set_applicable(const std::string& find_db);

// Whether MLIR was built in. It isn't, unless a test says so.
void set_mlir(bool is_built_in);

}  // namespace stub
