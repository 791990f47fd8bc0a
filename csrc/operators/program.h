// Programs after a convolution, and on existing tensors.
#pragma once

#include <optional>

#include "conv.h"
#include "plan/interned.h"

namespace reformer {

// Counters of kernels that reduce (StitchedPlan), 0 before and after each launch. Kernels that share them must be on
// one stream, so each run of a plan has its own.
class Semaphores {
 public:
  // The counters, on the device of `like`.
  unsigned* counters(const Tensor& like);

 private:
  std::optional<Tensor> counters_;
};

// Runs the program with `acc` ([N, C, H, W]) as its accumulator and `tensors` as its inputs in order; returns its
// outputs.
std::vector<Tensor> stitch(const Tensor& acc, const std::vector<Tensor>& tensors, const Ints& program);

// Runs the program on a convolution's result.
std::vector<Tensor> conv2d_epilogue(const Tensor& input, const Tensor& weight, const std::vector<Tensor>& tensors,
                                    const Ints& program, const Ints& stride, const Ints& padding, const Ints& dilation,
                                    int64_t groups);

// Variants with a decoded program and a packed geometry (plan/interned.h). into: dense tensors to which the program's
// last outputs are written. semaphores: null, or valid for this stream.
std::vector<Tensor> stitch_interned(const Tensor& acc, const std::vector<Tensor>& tensors,
                                    const InternedProgram& program, const std::vector<Tensor>& into,
                                    Semaphores* semaphores = nullptr);
std::vector<Tensor> conv2d_epilogue_interned(const Tensor& input, const Tensor& weight,
                                             const std::vector<Tensor>& tensors, const InternedProgram& program,
                                             int64_t geometry);

}  // namespace reformer
