// Programs on a GPU: kernels are generated for them, compiled at their first use and cached.
#pragma once

#include <functional>

#include "device.h"
#include "jit/gpu.h"
#include "planned.h"
#include "program/program.h"

namespace reformer {

// How a program's kernels run over results of one shape.
struct StitchedPlan {
  int64_t workspace_bytes = 0;  // of temporary memory
  int semaphores = 0;           // counters by which one kernel less is enough (StitchConfig), or 0
  // Starts them. Full tensors begin at multiples of 16 bytes. semaphores: as many counters, or null.
  std::function<void(const ProgramCall&, const gpu::Queue&, void* workspace, unsigned* semaphores)> run;
};

// The plan for calls with this one's shape and key (program_key.h), or the reason why no kernel runs the program. The
// outputs need not be there yet. A thread remembers it; good until it asks again.
const Planned<StitchedPlan>& planned_stitch(const ProgramCall& call, const Device& device);

}  // namespace reformer
