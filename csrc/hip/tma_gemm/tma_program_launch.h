// Launches of TMA GEMM kernels with a program in their epilogue.
#pragma once

#include <algorithm>
#include <string>

#include "hip/programs/conv_program.h"
#include "tma_gemm_launch.h"

namespace reformer {

// The part of a program's tensors that the copy engine loads and stores: as many as the kernels support.
inline DenseTensors tma_tensors(const ProgramCall& call) {
  DenseTensors tensors = dense_tensors(call);
  tensors.loaded.resize(std::min(tensors.loaded.size(), size_t(kTmaMostLoaded)));
  tensors.stored.resize(std::min(tensors.stored.size(), size_t(kTmaMostStored)));
  return tensors;
}
inline TmaEpilogue tma_epilogue(const DenseTensors& tensors) {
  return {int(tensors.loaded.size()), int(tensors.stored.size()), tensors.channel_values};
}

// A kernel with a program, which it was fitted to: kernel.with(tma_epilogue(...)).
class TmaGemmProgram {
 public:
  TmaGemmProgram(const TmaGemmKernel& kernel, const TmaGemmConfig& config, const ProgramCall& call)
      : kernel_(kernel),
        config_(config),
        tensors_(tma_tensors(call)),
        generated_(kernel.entry, call, tma_gemm_parts(kernel, config.args), arguments_of(kernel).c_str()) {}

  int64_t workspace_bytes() const { return generated_.workspace_bytes(); }

  // source: x, or in an input gradient y.
  void launch(const gpu::Queue& queue, const void* source, const void* filter, const ProgramCall& call,
              void* workspace) const {
    TmaGemmConfig bound = config_;
    bind(bound, kernel_, source, source, filter, nullptr, generated_.result_of(call), nullptr);
    if (kernel_.what.windows)
      launch_with<TmaWindowsArgs>(bound, queue, call, workspace);
    else
      launch_with<TmaGemmArgs>(bound, queue, call, workspace);
  }

 private:
  template <class Args>
  void launch_with(const TmaGemmConfig& bound, const gpu::Queue& queue, const ProgramCall& call,
                   void* workspace) const {
    TmaWithTensors<Args> args{bound.args, {}};
    TensorMap* next = args.epilogue;
    const auto add = [&](const void* tensor) {
      *next++ = gpu::tensor_map(tensor, {args.columns, args.rows}, {64, 64});
    };
    for (size_t i : tensors_.loaded) add(call.inputs[i].data);
    for (size_t i : tensors_.stored) add(call.outputs[i]);
    generated_.launch(bound.launch, queue, args, call, workspace);
  }

  // The plain kernel's, with the number of stages that is left.
  static std::string arguments_of(const TmaGemmKernel& kernel) {
    const std::string plain = kernel.entry.arguments;
    const size_t consumers = plain.rfind(", "), stages = plain.rfind(", ", consumers - 1);
    return plain.substr(0, stages + 2) + std::to_string(kernel.tile.stages) + plain.substr(consumers);
  }

  TmaGemmKernel kernel_;
  TmaGemmConfig config_;
  DenseTensors tensors_;
  KernelWithProgram generated_;
};

}  // namespace reformer
