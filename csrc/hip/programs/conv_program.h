// Programs inside convolutions' kernels: on the sums, before anything is stored. A kernel's source is compiled with the
// text of the program after it and makes, by its macro REFORMER_WITH_PROGRAM, the one that runs it.
#pragma once

#include "hip/kernels/stitch.h"
#include "jit/gpu.h"
#include "program/program.h"

namespace reformer {

// Whether a kernel of forward in NHWC whose threads access so many adjacent channels at once can run the program.
// reduces: whether the kernel can run a reduction over channels. The outputs need not be there yet.
bool takes_program(const ProgramCall& call, int elements_per_access, bool reduces = false);

// The output that leaves the kernel as the result would; the program writes its others itself.
void* result_of(const ProgramCall& call);

StitchArgs program_args(const ProgramCall& call);

// Bytes of the partial results of its reductions, for so many parts.
int64_t partial_bytes(const ProgramCall& call, int parts);

// The kernel with the program in it.
gpu::Entry with_program(const gpu::Entry& plain, const ProgramCall& call);

// Combines the parts of its reductions by another kernel.
void finish_program(const ProgramCall& call, const StitchArgs& args, const gpu::Queue& queue);

// Starts it, and what adds up reductions. args: of the plain kernel; their result is result_of(). partial: of
// partial_bytes().
template <class Args>
void launch_with_program(const gpu::Entry& plain, const gpu::Launch& shape, const gpu::Queue& queue, const Args& args,
                         const ProgramCall& call, void* partial = nullptr, int parts = 0) {
  StitchArgs program = program_args(call);
  program.partial = static_cast<float*>(partial);
  program.parts = parts;
  gpu::launch(with_program(plain, call), shape, queue, WithProgram<Args>{args, program});
  if (!call.program.reductions.empty()) finish_program(call, program, queue);
}

}  // namespace reformer
