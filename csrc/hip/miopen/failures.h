// Solvers of MIOpen's that failed for a problem although nothing speaks against them: they refuse it from then on, in
// this process.
#pragma once

#include <string>

#include "handle.h"

namespace reformer::miopen {

// The sentence of the failure, good for ever, or null.
const char* find_failure(const RunKey& run, const std::string& arch);

// Whether nobody has heard the sentence yet, on this architecture.
bool note_failure(const RunKey& run, const std::string& arch, const std::string& sentence);

}  // namespace reformer::miopen
