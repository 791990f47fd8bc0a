// The generated text of a program for its kernels, and the kernels' names.
#pragma once

#include <string>

#include "jit/gpu.h"
#include "program/program.h"

namespace reformer {

struct ProgramText {
  std::string source;  // the structure Program (stitch_source.h)
  std::string digest;  // 16 digits
};

// The program must be interned. A thread caches the text, as several kernels are planned with each; valid until the
// thread's next call.
const ProgramText& program_text(const ProgramCall& call);

// The kernel that adds up the partial results of the program's reductions, from whichever kernel.
gpu::Kernel stitch_finish(const ProgramText& program);

}  // namespace reformer
