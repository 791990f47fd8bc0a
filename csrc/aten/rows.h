// A matrix product [..., C] @ [K, C].T as a 1x1 convolution, whose tensors are views of the same memory; see
// torch_reformer/operators/rows.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reformer {

// How a tensor of the product is viewed as one of the convolution.
enum class Form : int8_t {
  same,
  full,         // [..., K] as [N, K, H, W] in channels_last order
  row,          // [...] as [N, H, W]
  row_moments,  // [2, ...] as [2, N, H, W]
  filter        // [K, C] as [K, C, 1, 1]
};

class Rows {
 public:
  // size: the input's, without its last dimension.
  explicit Rows(at::IntArrayRef size);

  at::Tensor of_conv(const at::Tensor& tensor, Form form) const;
  at::Tensor of_product(const at::Tensor& tensor, Form form) const;

 private:
  std::vector<int64_t> size_, pixels_;  // pixels: [N, H, W]
};

}  // namespace reformer
