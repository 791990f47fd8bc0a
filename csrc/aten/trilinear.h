// Convolution and its two derivatives as autograd sees them, on the eager fast path.
//
// The three operators are the partial derivatives of one trilinear form T(x, w, y) = <conv2d(x, w), y>, as in
// torch_reformer/operators/conv.py. Each is bilinear in its two operands, and its derivative with respect to an operand
// is again one of the three, so that one rule serves every order of differentiation.
#pragma once

#include "convolution.h"

namespace reformer {

// conv2d of plain tensors, cast as autocast casts them. nullopt if PyTorch's dispatcher has to see the call, or if this
// package has no kernels: torch.ops.reformer.conv2d then computes it or raises the error.
std::optional<at::Tensor> conv2d(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                 const ConvGeometry& geometry);

// Set the plan that computes bias gradients, sums over each channel, where they are not differentiated again.
void set_sums_plan(int64_t number);

}  // namespace reformer
