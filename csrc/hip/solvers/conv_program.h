// Programs inside convolutions' kernels: on the sums, before anything is stored. A kernel's source is compiled with the
// text of the program after it and makes, by its macro REFORMER_WITH_PROGRAM, the one that runs it.
#pragma once

#include "../../epilogue.h"
#include "../kernels/stitch.h"
#include "../runtime/gpu.h"

namespace reformer {

// Whether a kernel of forward in NHWC, whose threads have so many neighbouring channels at once, can run the program.
// reduces: it gathers a reduction of channels. The outputs need not be there yet.
bool takes_program(const EpilogueCall& call, int neighbours, bool reduces = false);

// The output that leaves the kernel as the result would; the program writes its others itself.
void* result_of(const EpilogueCall& call);

StitchArgs program_args(const EpilogueCall& call);

// Of the partial results of its reductions, of so many parts.
int64_t partial_bytes(const EpilogueCall& call, int parts);

// The kernel with the program in it.
gpu::Entry with_program(const gpu::Entry& plain, const EpilogueCall& call);

// Adds up the parts of its reductions, by a kernel after it.
void finish_program(const EpilogueCall& call, const StitchArgs& args, const gpu::Queue& queue);

// Starts it, and what adds up reductions. args: of the plain kernel; their result is result_of(). partial: of
// partial_bytes().
template <class Args>
void launch_with_program(const gpu::Entry& plain, const gpu::Launch& shape, const gpu::Queue& queue, const Args& args,
                         const EpilogueCall& call, void* partial = nullptr, int parts = 0) {
  StitchArgs program = program_args(call);
  program.partial = static_cast<float*>(partial);
  program.parts = parts;
  gpu::launch(with_program(plain, call), shape, queue, WithProgram<Args>{args, program});
  if (!call.program.reductions.empty()) finish_program(call, program, queue);
}

}  // namespace reformer
