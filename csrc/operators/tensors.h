// What the operators need of PyTorch's tensors, over its stable C ABI only.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "conv/problem.h"
#include "conv/solver.h"

namespace reformer {

using torch::stable::Tensor;
using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

// Layout of what a convolution makes of two operands, as PyTorch decides it: NHWC if the strides of either say
// channels_last, but not in fp64 on a GPU, and not where there is nothing to compute. The fake kernels have the same
// rule.
Layout result_layout(const Tensor& first, const Tensor& second);

// torch's current stream on its GPU of this index, as the driver knows it.
void* current_stream(int32_t device);

// The tensor itself if its elements are dense in this layout and, on a GPU, begin at a multiple of 16 bytes; else a
// copy that is so.
Tensor dense(const Tensor& tensor, Layout layout);

// The tensor itself if its elements are dense in the order of its dimensions, else a copy.
Tensor contiguous_of(const Tensor& tensor);

// A view of element i of the first dimension.
Tensor part(const Tensor& tensor, int64_t i);

// contiguous_of() that, on a GPU, begins at a multiple of 16 bytes.
Tensor aligned(const Tensor& tensor);

// An uninitialised tensor on the device of `like`, of its data type or of another: dense, in the layout if it
// has 4 dimensions.
Tensor empty(const Tensor& like, Sizes sizes, Layout layout);
Tensor empty(const Tensor& like, Sizes sizes, Layout layout, torch::headeronly::ScalarType type);

// A solver's view of one operator call. `first` and `second` are the operands in the order of the trilinear form
// (x, w, y) with the one that is computed left out.
class TensorCall final : public ConvCall {
 public:
  TensorCall(const ConvProblem& problem, const Tensor& first, const Tensor& second, const Tensor* bias)
      : problem_(problem), first_(first), second_(second), bias_(bias) {}

  ConvBuffers operands() const;  // without result and workspace
  ConvBuffers buffers(int64_t workspace_bytes) override;
  void aten(Layout via) override;
  Tensor take_result();  // dense in the problem's layout

 private:
  const ConvProblem& problem_;
  const Tensor& first_;
  const Tensor& second_;
  const Tensor* bias_;
  Tensor result_, workspace_;
};

// Sizes of the tensor that the problem computes.
std::array<int64_t, 4> result_sizes(const ConvProblem& problem);

}  // namespace reformer
