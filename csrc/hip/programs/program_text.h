// The text of a program's part of kernels, and the name that kernels get of it.
#pragma once

#include <string>

#include "jit/gpu.h"
#include "program/program.h"

namespace reformer {

struct ProgramText {
  std::string source;  // of the structure Program (stitch_source.h)
  std::string digest;  // 16 digits
};

// The program is an interned one. A thread remembers its text, as several kernels are planned with each; good until it
// asks again.
const ProgramText& program_text(const ProgramCall& call);

// The kernel that adds up the partial results of the program's reductions, whichever kernel gave these.
gpu::Kernel stitch_finish(const ProgramText& program);

}  // namespace reformer
