// Programs on a GPU: kernels are generated for them, compiled at their first use and kept in the cache of kernels.
#pragma once

#include "../../device.h"
#include "../../epilogue.h"
#include "../runtime/gpu.h"

namespace reformer {

// Null if a kernel can run the program, or a sentence that says why not. The outputs need not be there yet.
const char* refuse_stitch(const EpilogueCall& call, const Device& device);

// Temporary memory in bytes; only asked where refuse_stitch() is null.
int64_t stitch_workspace_bytes(const EpilogueCall& call, const Device& device);

// Starts it. Full tensors begin at multiples of 16 bytes.
void run_stitch(const EpilogueCall& call, const Device& device, const gpu::Queue& queue, void* workspace);

}  // namespace reformer
