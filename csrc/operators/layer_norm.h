// Layer norm over the last dimension, forward and backward, for the rules of torch_reformer/operators/layer_norm.py.
#pragma once

#include <optional>
#include <vector>

#include "tensors.h"

namespace reformer {

// The result, of that data type, and fp32 [2, rows]: each row's mean, and one over its deviation.
std::vector<Tensor> layer_norm(const Tensor& input, const std::optional<Tensor>& weight,
                               const std::optional<Tensor>& bias, double eps, torch::headeronly::ScalarType dtype);

// Gradients that `wanted` has a bit for: of the input 1, the weight 2, the bias 4. Those of weight and bias have the
// weight's data type, or fp32 without one.
std::vector<Tensor> layer_norm_backward(const Tensor& grad, const Tensor& input, const Tensor& statistics,
                                        const std::optional<Tensor>& weight, int64_t wanted);

}  // namespace reformer
