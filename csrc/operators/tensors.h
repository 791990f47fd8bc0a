// PyTorch's tensors for operators, over its stable C ABI only.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "conv/problem.h"
#include "conv/solver.h"

namespace reformer {

using torch::stable::Tensor;
using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

// As conv/layout.h.
Layout result_layout(const Tensor& first, const Tensor& second);

// torch's current stream on its GPU of this index, as the driver knows it.
void* current_stream(int32_t device);

// True if the elements of a tensor of 4 dimensions are dense in this layout and, on a GPU, begin at a multiple of 16
// bytes.
bool is_dense(const Tensor& tensor, Layout layout);

// The tensor itself if it is dense in this layout, else a copy that is.
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

// One call's operands, dense in the problem's layout: `first` and `second` in the order of the trilinear form (x, w, y)
// with the one that is computed left out.
struct ConvOperands {
  const ConvProblem& problem;
  const Tensor& first;
  const Tensor& second;
  const Tensor* bias;  // or null
};

// The buffers of a plan's run, without result and workspace.
ConvBuffers buffers_of(const ConvOperands& operands);

// Allocates what the plan needs, and runs it or, where it says so, PyTorch's own convolution. The result is dense in
// the problem's layout. Not for plans with a program.
Tensor run(const ConvPlan& plan, const ConvOperands& operands);

}  // namespace reformer
