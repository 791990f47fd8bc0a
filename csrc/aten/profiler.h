// Profiler ranges for plans, which run in the package's other library.
#pragma once

#include "plan/profiler.h"

namespace reformer {

ReformerProfiler profiler_functions();

}  // namespace reformer
