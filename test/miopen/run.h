// *CompileSolution and *Immediate of any direction.
#pragma once

#include "problem.h"

namespace stub {

// Operands in the interface's order.
struct Operands {
  const void *first, *second;
  void* result;
  void* workspace;
  size_t workspace_bytes;
};

int compile(const Handle& handle, const Problem& problem, uint64_t id);
int run(Handle& handle, const Problem& problem, const Operands& operands, uint64_t id);

// The stream on which convolutions are to run, for all threads or for this one. It is the null stream otherwise.
void expect_stream(void* stream);
void expect_stream_of_thread(void* stream);
void forget_expected_stream();

// Whether products of matrices fail in a capture even when they have run before, as where BLAS needs a new workspace.
void fail_blas_in_capture(bool fails);

}  // namespace stub
