// Solvers of MIOpen's that failed for a problem although nothing speaks against them: they do not apply to it from then
// on, in this process.
#pragma once

#include <string>

#include "handle.h"

namespace reformer::miopen {

// The message of the failure, good for ever, or null.
const char* find_failure(const RunKey& run, const std::string& arch);

// True if the message is new on this architecture.
bool note_failure(const RunKey& run, const std::string& arch, const std::string& message);

}  // namespace reformer::miopen
