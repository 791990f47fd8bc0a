// Layout of a convolution's result, decided from the strides of its operands as PyTorch does. The fake kernels
// (torch_reformer/operators/fake.py) have the same rule for sizes that may be symbolic.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "types.h"

namespace reformer {

// NHWC if the strides of a nonempty tensor of 4 dimensions are channels_last by PyTorch's own rule, in its order of
// tests (c10/core/MemoryFormat.h, is_channels_last_strides_2d). Ambiguous shapes are NCHW.
inline Layout suggested_layout(const int64_t* sizes, const int64_t* strides) {
  if (strides[1] == 0) return Layout::nchw;
  int64_t least = 0;
  for (const int d : {1, 3, 2, 0}) {
    if (strides[d] < least) return Layout::nchw;
    if (d == 0 && least == strides[1]) return Layout::nchw;
    least = strides[d];
    if (sizes[d] > 1) least *= sizes[d];
  }
  return Layout::nhwc;
}

// NHWC if either operand suggests it, except in fp64 on a GPU, where cuDNN's convolutions are NCHW (those on the CPU
// are not), and except if there is nothing to compute. The operands have 4 dimensions.
template <class Tensor>
Layout result_layout(const Tensor& first, const Tensor& second, bool is_fp64) {
  if (is_fp64 && first.is_cuda()) return Layout::nchw;
  if (first.numel() == 0 || second.numel() == 0) return Layout::nchw;
  const auto is_nhwc = [](const Tensor& tensor) {
    return suggested_layout(tensor.sizes().data(), tensor.strides().data()) == Layout::nhwc;
  };
  return is_nhwc(first) || is_nhwc(second) ? Layout::nhwc : Layout::nchw;
}

}  // namespace reformer
