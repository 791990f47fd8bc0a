// Programs on a GPU: their kernels are generated, compiled at their first use and cached.
#pragma once

#include <functional>

#include "device.h"
#include "jit/gpu.h"
#include "planned.h"
#include "program/program.h"

namespace reformer {

// How a program's kernels run on results of one shape.
struct StitchedPlan {
  int64_t workspace_bytes = 0;  // temporary memory
  int semaphores = 0;           // counters by which one kernel less suffices (StitchConfig), or 0
  // Starts the kernels. Full tensors are aligned to 16 bytes. semaphores: as many counters, or null.
  std::function<void(const ProgramCall&, const gpu::Queue&, void* workspace, unsigned* semaphores)> run;
};

// The plan for calls with this call's shape and key (program_key.h), or the reason why no kernel runs the program. The
// outputs may still be missing. Cached per thread; valid until the thread's next call.
const Planned<StitchedPlan>& planned_stitch(const ProgramCall& call, const Device& device);

}  // namespace reformer
