// Convolution and its two derivatives as autograd sees them, on the eager fast path.
//
// The three are the partial derivatives of one trilinear form T(x, w, y) = <conv2d(x, w), y>, as in
// torch_reformer/operators/conv.py: each is bilinear in its two operands, and the derivative with respect to an operand
// is again one of the three. So one rule serves every order of differentiation.
#pragma once

#include "convolution.h"

namespace reformer {

// conv2d of plain tensors, cast as autocast casts them. Nothing where PyTorch's dispatcher has to see the call, or
// where this package has no kernels: torch.ops.reformer.conv2d then computes it, or says what is wrong.
std::optional<at::Tensor> conv2d(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                 const ConvGeometry& geometry);

// The plan by which gradients of biases are computed where nobody differentiates them again: the sums over each
// channel.
void set_sums_plan(int64_t number);

}  // namespace reformer
