// Programs inside convolutions' kernels: on the sums, before anything is stored. A kernel's source is compiled with the
// text of the program after it and makes, by its macro REFORMER_WITH_PROGRAM, the one that runs it.
#pragma once

#include <optional>

#include "jit/gpu.h"
#include "program/program.h"
#include "stitch_args.h"

namespace reformer {

// Which one reduction over channels a kernel can compute: none, one of what it stores as the result, or any.
enum class Reduces : uint8_t { nothing, result, anything };

// Which programs a kernel of forward in NHWC can run.
struct ProgramLimits {
  int channels_per_access;  // adjacent channels that a thread accesses at once
  Reduces reduces = Reduces::nothing;
  bool accesses_full = true;  // reads and writes tensors that differ from pixel to pixel, beside the result
};

// True if it can run this one. The outputs need not be there yet.
bool supports_program(const ProgramCall& call, const ProgramLimits& limits);

// A convolution's kernel with a program in it, planned for one that supports_program() allows.
class KernelWithProgram {
 public:
  // parts: how many partial results of each channel the kernel leaves, if the program reduces.
  KernelWithProgram(const gpu::Entry& plain, const ProgramCall& call, int parts = 0);

  // Room for the partial results.
  int64_t workspace_bytes() const { return workspace_bytes_; }

  // The output that leaves the kernel as the result would; the program writes its others itself.
  void* result_of(const ProgramCall& call) const { return call.outputs[result_]; }

  // Starts it, and what adds up reductions. args: of the plain kernel; their result is result_of().
  template <class Args>
  void launch(const gpu::Launch& shape, const gpu::Queue& queue, const Args& args, const ProgramCall& call,
              void* workspace = nullptr) const {
    const StitchArgs program = bound(call, workspace);
    gpu::launch(kernel_, shape, queue, WithProgram<Args>{args, program});
    if (finish_) gpu::launch(*finish_, finish_shape_, queue, program);
  }

 private:
  StitchArgs bound(const ProgramCall& call, void* workspace) const;

  const gpu::Kernel kernel_;
  std::optional<gpu::Kernel> finish_;
  gpu::Launch finish_shape_;
  StitchArgs args_{};
  size_t result_;
  int64_t workspace_bytes_;
};

}  // namespace reformer
