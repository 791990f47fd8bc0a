// Programs after a convolution, and over tensors that are there already.
#pragma once

#include <optional>

#include "conv.h"
#include "plan/interned.h"

namespace reformer {

// Counters of kernels that reduce (StitchedPlan): 0 before and after each launch. Those that use the same ones
// follow one another on a stream, so a run of a plan has its own.
class Semaphores {
 public:
  // On the device of `like`.
  unsigned* counters(const Tensor& like);

 private:
  std::optional<Tensor> counters_;
};

// The program's outputs, where its accumulator is `acc` ([N, C, H, W]); `tensors` are its inputs in their order.
std::vector<Tensor> stitch(const Tensor& acc, const std::vector<Tensor>& tensors, const Ints& program);

// Runs it over a convolution's result.
std::vector<Tensor> conv2d_epilogue(const Tensor& input, const Tensor& weight, const std::vector<Tensor>& tensors,
                                    const Ints& program, const Ints& stride, const Ints& padding, const Ints& dilation,
                                    int64_t groups);

// These two by a decoded program and a packed geometry (plan/interned.h). into: dense tensors of channels, to which the
// program's last outputs are written. semaphores: null, or good for this stream.
std::vector<Tensor> stitch_interned(const Tensor& acc, const std::vector<Tensor>& tensors,
                                    const InternedProgram& program, const std::vector<Tensor>& into,
                                    Semaphores* semaphores = nullptr);
std::vector<Tensor> conv2d_epilogue_interned(const Tensor& input, const Tensor& weight,
                                             const std::vector<Tensor>& tensors, const InternedProgram& program,
                                             int64_t geometry);

}  // namespace reformer
