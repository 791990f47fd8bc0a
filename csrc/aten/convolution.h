// Convolutions of plain tensors below autograd, by the plan that was decided for each problem.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "conv/problem.h"

namespace reformer {

// The geometry of PyTorch's arguments; nothing if they are not those of a two-dimensional convolution.
std::optional<ConvGeometry> geometry_of(at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                        int64_t groups);

// The layout of the result (conv/layout.h).
Layout layout_of(const at::Tensor& first, const at::Tensor& second);

// The problem of an input and a weight of these sizes, whose operands are these two tensors; nothing if this package
// has no kernels for it, or if it is none: PyTorch's own convolution then computes it, or says what is wrong.
std::optional<ConvProblem> problem_of(Direction direction, at::IntArrayRef input, at::IntArrayRef weight,
                                      const ConvGeometry& geometry, const at::Tensor& first, const at::Tensor& second,
                                      Layout layout);

// True if a forward pass of these two can add it.
bool is_bias_of(const at::Tensor& bias, const at::Tensor& input, const at::Tensor& weight);

// True if the tensor has the size of the problem's y.
bool is_result_of(const at::Tensor& tensor, const ConvProblem& problem);

// True if the choice is PyTorch's own convolution on the operands as they are.
bool is_aten(const ConvProblem& problem, const at::Tensor& operand);

// The result, dense in the problem's layout. The operands are those of the trilinear form <conv(x, w), y>, x before w
// before y, without the one that is computed; bias is null, or of forward. What PyTorch's own convolution computes is
// what aten::convolution would.
at::Tensor convolve(const ConvProblem& problem, const at::Tensor& first, const at::Tensor& second,
                    const at::Tensor* bias);

}  // namespace reformer
