// Programs inside convolutions' kernels: on the sums, before anything is stored. A kernel's source is compiled with the
// text of the program after it and makes, by its macro REFORMER_WITH_PROGRAM, the one that runs it.
#pragma once

#include "../../epilogue.h"
#include "../kernels/stitch.h"
#include "../runtime/gpu.h"

namespace reformer {

// Whether a kernel of forward in NHWC, whose threads have so many neighbouring channels at once, can run the program.
// The outputs need not be there yet.
bool takes_program(const EpilogueCall& call, int neighbours);

// The output that leaves the kernel as the result would; the program writes its others itself.
void* result_of(const EpilogueCall& call);

StitchArgs program_args(const EpilogueCall& call);

// The kernel with the program in it.
gpu::Entry with_program(const gpu::Entry& plain, const EpilogueCall& call);

// Starts it. args: of the plain kernel; their result is result_of().
template <class Args>
void launch_with_program(const gpu::Entry& plain, const gpu::Launch& shape, const gpu::Queue& queue, const Args& args,
                         const EpilogueCall& call) {
  gpu::launch(with_program(plain, call), shape, queue, WithProgram<Args>{args, program_args(call)});
}

}  // namespace reformer
