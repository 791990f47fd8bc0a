// Helpers for PyTorch's tensors in operators, over torch's stable C ABI only.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "conv/problem.h"
#include "conv/solver.h"

namespace reformer {

using torch::stable::Tensor;
using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

// See conv/layout.h.
Layout result_layout(const Tensor& first, const Tensor& second);

// torch's current stream on its GPU of this index, as a driver handle.
void* current_stream(int32_t device);

// True if a tensor of 4 dimensions is dense in this layout and, on a GPU, aligned to 16 bytes.
bool is_dense(const Tensor& tensor, Layout layout);

// The tensor itself if it is dense in this layout, else a dense copy.
Tensor dense(const Tensor& tensor, Layout layout);

// The tensor itself if it is dense in the order of its dimensions, else a copy.
Tensor contiguous_of(const Tensor& tensor);

// A view of element i of the first dimension.
Tensor part(const Tensor& tensor, int64_t i);

// As contiguous_of(), but on a GPU also aligned to 16 bytes.
Tensor aligned(const Tensor& tensor);

// An uninitialised dense tensor on the device of `like`, of its data type unless another is given; in the layout if it
// has 4 dimensions.
Tensor empty(const Tensor& like, Sizes sizes, Layout layout);
Tensor empty(const Tensor& like, Sizes sizes, Layout layout, torch::headeronly::ScalarType type);

// Operands of one call, dense in the problem's layout: `first` and `second` are in the order of the trilinear form (x,
// w, y), without the one that is computed.
struct ConvOperands {
  const ConvProblem& problem;
  const Tensor& first;
  const Tensor& second;
  const Tensor* bias;  // or null
};

// The buffers for a plan's run, without result and workspace.
ConvBuffers buffers_of(const ConvOperands& operands);

// Allocates memory and runs the plan or, if the plan says so, PyTorch's own convolution. The result is dense in the
// problem's layout. Not for plans with a program.
Tensor run(const ConvPlan& plan, const ConvOperands& operands);

}  // namespace reformer
