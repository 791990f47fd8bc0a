// Convolutions of plain tensors below autograd, run by the plan decided for each problem.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "conv/problem.h"

namespace reformer {

// Geometry of PyTorch's arguments; nullopt if they don't describe a two-dimensional convolution.
std::optional<ConvGeometry> geometry_of(at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                        int64_t groups);

// Layout of the result (conv/layout.h).
Layout layout_of(const at::Tensor& first, const at::Tensor& second);

// Problem of an input and a weight of these sizes, with these two tensors as its operands. nullopt if it is not a
// convolution, or if this package has no kernels for it: PyTorch's own convolution then computes it or raises the
// error.
std::optional<ConvProblem> problem_of(Direction direction, at::IntArrayRef input, at::IntArrayRef weight,
                                      const ConvGeometry& geometry, const at::Tensor& first, const at::Tensor& second,
                                      Layout layout);

// True if a forward pass of these operands can add the bias.
bool is_bias_of(const at::Tensor& bias, const at::Tensor& input, const at::Tensor& weight);

// True if the tensor has the size of the problem's y.
bool is_result_of(const at::Tensor& tensor, const ConvProblem& problem);

// True if the decision is PyTorch's own convolution on unconverted operands.
bool is_aten(const ConvProblem& problem, const at::Tensor& operand);

// The result, dense in the problem's layout. The operands are those of the trilinear form <conv(x, w), y> in the order
// x, w, y, without the one that is computed. bias is null except in forward. Where PyTorch's own convolution is chosen,
// the result is that of aten::convolution.
at::Tensor convolve(const ConvProblem& problem, const at::Tensor& first, const at::Tensor& second,
                    const at::Tensor* bias);

}  // namespace reformer
