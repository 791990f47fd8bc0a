// Operators of pooling.
#pragma once

#include <tuple>
#include <vector>

#include "tensors.h"

namespace reformer {

// PyTorch's max pooling of images, with bytes in place of its indices: for each result the place of the maximum in its
// window, by rows. By PyTorch's own operators where no kernel does it.
std::tuple<Tensor, Tensor> max_pool2d(const Tensor& input, const std::vector<int64_t>& window,
                                      const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                                      const std::vector<int64_t>& dilation, bool ceil_mode);

// The gradient of images of `size` (height, width), in the order of memory that the places have.
Tensor max_pool2d_grad(const Tensor& grad, const Tensor& places, const std::vector<int64_t>& size,
                       const std::vector<int64_t>& window, const std::vector<int64_t>& stride,
                       const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation);

}  // namespace reformer
