// Runs of MIOpen's that failed although it had accepted them: the solver refuses the problem from then on, in this
// process.
#pragma once

#include <string>

#include "handle.h"

namespace reformer::miopen {

// The sentence of the failure, good for ever, or null.
const char* find_failure(const RunKey& run, const std::string& arch);

// Whether it is the first of this run, on this architecture.
bool note_failure(const RunKey& run, const std::string& arch, const std::string& sentence);

}  // namespace reformer::miopen
