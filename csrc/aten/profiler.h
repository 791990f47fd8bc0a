// Ranges of PyTorch's profiler for the package's other library, in which plans run.
#pragma once

#include "plan/profiler.h"

namespace reformer {

ReformerProfiler profiler_functions();

}  // namespace reformer
