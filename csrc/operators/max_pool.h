// Operators of pooling.
#pragma once

#include <tuple>
#include <vector>

#include "tensors.h"

namespace reformer {

// PyTorch's max pooling of images, with bytes in place of its indices: for each result the position of the maximum
// within its window, counted row by row. PyTorch's own operators are used where no kernel supports it.
std::tuple<Tensor, Tensor> max_pool2d(const Tensor& input, const std::vector<int64_t>& window,
                                      const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                                      const std::vector<int64_t>& dilation, bool ceil_mode);

// Gradient of images of `size` (height, width), in the memory format of the positions.
Tensor max_pool2d_grad(const Tensor& grad, const Tensor& places, const std::vector<int64_t>& size,
                       const std::vector<int64_t>& window, const std::vector<int64_t>& stride,
                       const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation);

}  // namespace reformer
