// Programs on a GPU: kernels are generated for them, compiled at their first use and cached.
#pragma once

#include "device.h"
#include "jit/gpu.h"
#include "program/program.h"

namespace reformer {

// Null if a kernel can run the program, or a sentence that says why not. The outputs need not be there yet.
const char* refuse_stitch(const ProgramCall& call, const Device& device);

// Temporary memory in bytes; only asked where refuse_stitch() is null.
int64_t stitch_workspace_bytes(const ProgramCall& call, const Device& device);

// Starts it. Full tensors begin at multiples of 16 bytes.
void run_stitch(const ProgramCall& call, const Device& device, const gpu::Queue& queue, void* workspace);

}  // namespace reformer
