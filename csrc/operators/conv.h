// Convolution and its derivatives, with all argument checks. Below this layer only tensors.cpp and cpu/parallel.cpp use
// torch.
#pragma once

#include <optional>
#include <vector>

#include "tensors.h"

namespace reformer {

using Ints = std::vector<int64_t>;

Tensor conv2d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const Ints& stride,
              const Ints& padding, const Ints& dilation, int64_t groups);

// A program after a convolution, which the convolution's kernel may run itself. The buffers have no result.
class ConvEpilogue {
 public:
  virtual ~ConvEpilogue() = default;
  virtual const ProgramCall& call(const ConvProblem& problem) = 0;  // without acc and outputs
  virtual void run(const ConvPlan& plan, const ConvBuffers& buffers) = 0;

  bool done = false;  // a convolution's kernel has run it
};

// conv2d followed by the program. The returned tensor is undefined if the convolution's kernel ran the program.
Tensor conv2d_with(ConvEpilogue& program, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups);

Tensor conv2d_input_grad(const Ints& input_size, const Tensor& weight, const Tensor& grad_output, const Ints& stride,
                         const Ints& padding, const Ints& dilation, int64_t groups);
Tensor conv2d_weight_grad(const Ints& weight_size, const Tensor& input, const Tensor& grad_output, const Ints& stride,
                          const Ints& padding, const Ints& dilation, int64_t groups);

// Variants with a packed geometry (plan/interned.h). conv2d_grads returns the gradients whose bits are set in `wanted`:
// 1 for the input, 2 for the weight.
Tensor conv2d_of_geometry(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                          int64_t geometry);
std::vector<Tensor> conv2d_grads(const Tensor& grad_output, const Tensor& input, const Tensor& weight, int64_t geometry,
                                 int64_t wanted);

}  // namespace reformer
