// Programs after a convolution, and over tensors that are there already.
#pragma once

#include "conv_operators.h"

namespace reformer {

// The program's outputs, where its accumulator is `acc` ([N, C, H, W]); `tensors` are its inputs in their order.
std::vector<Tensor> stitch(const Tensor& acc, const std::vector<Tensor>& tensors, const Ints& program);

// The same where it is a convolution's result.
std::vector<Tensor> conv2d_epilogue(const Tensor& input, const Tensor& weight, const std::vector<Tensor>& tensors,
                                    const Ints& program, const Ints& stride, const Ints& padding, const Ints& dilation,
                                    int64_t groups);

// The same by numbers of a program and a geometry (kept.h).
std::vector<Tensor> stitch_kept(const Tensor& acc, const std::vector<Tensor>& tensors, int64_t program);
std::vector<Tensor> conv2d_epilogue_kept(const Tensor& input, const Tensor& weight, const std::vector<Tensor>& tensors,
                                         int64_t program, int64_t geometry);

}  // namespace reformer
