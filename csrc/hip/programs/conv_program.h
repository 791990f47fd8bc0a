// Programs inside convolution kernels, which run on the sums before anything is stored. The kernel's source is compiled
// with the program's text after it; its macro REFORMER_WITH_PROGRAM then defines the kernel that runs the program.
#pragma once

#include <optional>
#include <vector>

#include "jit/gpu.h"
#include "program/program.h"
#include "stitch_args.h"

namespace reformer {

// Which single reduction over channels a kernel can compute: none, one of its stored result, or any.
enum class Reduces : uint8_t { nothing, result, anything };

// Which programs a forward kernel in NHWC can run.
struct ProgramLimits {
  int channels_per_access;  // adjacent channels that a thread accesses at once
  Reduces reduces = Reduces::nothing;
  bool accesses_full = true;  // it can access tensors other than the result that differ from pixel to pixel
};

// True if the kernel can run this program. The outputs may still be missing.
bool supports_program(const ProgramCall& call, const ProgramLimits& limits);

// The dense tensors of the result's type that a program reads or writes for each element, in the order of the bits of
// its text's kDenseLoaded and kDenseStored: indices of inputs and outputs.
struct DenseTensors {
  std::vector<size_t> loaded, stored;
  int channel_values;  // how many values of channels elements depend on
};
DenseTensors dense_tensors(const ProgramCall& call);

// A convolution kernel with a program in it, planned for a call that supports_program() accepts.
class KernelWithProgram {
 public:
  // parts: number of partial results of each channel that the kernel leaves, if the program reduces. arguments: of the
  // kernel's macro, where they differ from the plain kernel's; they follow from the program.
  KernelWithProgram(const gpu::Entry& plain, const ProgramCall& call, int parts = 0, const char* arguments = nullptr);

  // Bytes for the partial results.
  int64_t workspace_bytes() const { return workspace_bytes_; }

  // The output that the kernel stores as its result; the program writes the other ones itself.
  void* result_of(const ProgramCall& call) const { return call.outputs[result_]; }

  // Starts the kernel, and the kernel that adds up reductions. args: of the plain kernel; their result is result_of().
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
