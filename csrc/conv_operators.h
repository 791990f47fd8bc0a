// Convolution and its derivatives, with all checks of arguments. Everything below is free of torch except tensors.cpp
// and cpu/parallel.cpp.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tensors.h"

namespace reformer {

using Ints = std::vector<int64_t>;

Tensor conv2d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const Ints& stride,
              const Ints& padding, const Ints& dilation, int64_t groups);

// What may be done in place of the chosen solver's run(): it returns whether it did. The buffers have no result.
using Instead = std::function<bool(const Solver&, const ConvProblem&, const Device&, const ConvBuffers&)>;

// conv2d, whose result is not defined if something was done in its place.
Tensor conv2d_or(const Instead& instead, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                 const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups);

Tensor conv2d_input_grad(const Ints& input_size, const Tensor& weight, const Tensor& grad_output, const Ints& stride,
                         const Ints& padding, const Ints& dilation, int64_t groups);
Tensor conv2d_weight_grad(const Ints& weight_size, const Tensor& input, const Tensor& grad_output, const Ints& stride,
                          const Ints& padding, const Ints& dilation, int64_t groups);

// The same by a geometry's number (kept.h). Gradients that `wanted` has a bit for: of the input 1, the weight 2, a
// bias 4.
Tensor conv2d_kept(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, int64_t geometry);
std::vector<Tensor> conv2d_grads(const Tensor& grad_output, const Tensor& input, const Tensor& weight, int64_t geometry,
                                 int64_t wanted);

}  // namespace reformer
