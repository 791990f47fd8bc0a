// MIOpen's solvers that failed for a problem although they should apply. From then on this process considers them as
// not applying to it.
#pragma once

#include <string>

#include "handle.h"

namespace reformer::miopen {

// The message of the failure, valid forever, or null.
const char* find_failure(const RunKey& run, const std::string& arch);

// True if the message is new on this architecture.
bool note_failure(const RunKey& run, const std::string& arch, const std::string& message);

}  // namespace reformer::miopen
