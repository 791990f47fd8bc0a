// What the depthwise kernels and their host share: arguments, and the list of the kernels that are compiled.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kDepthwiseThreads = 128;         // a block of the kernels that compute a picture
constexpr int kDepthwiseFilterThreads = 256;   // of those that compute a filter
constexpr int kDepthwiseFinishOutputs = 32;    // elements of a filter that a block of the finish computes

// Tensors are dense NHWC; the filter is [channels][R][R]. Everything in elements. Forward reads x and writes y;
// input_grad reads dy and writes dx; weight_grad reads x and dy.
struct DepthwiseArgs {
  const void* x;       // forward, weight_grad: the input; input_grad: null
  const void* y;       // input_grad, weight_grad: the output's gradient; forward: null
  const void* filter;  // forward, input_grad
  const void* bias;    // forward: or null
  void* result;        // a picture; weight_grad: the partial sums, fp32 [splits][R * R][channels]
  int channels;
  int h, w, out_h, out_w;  // of x and of y
  int pad_h, pad_w;
  int rows;   // of y (input_grad: of x) that one thread computes
  int items;  // strips of rows x strips of columns x pictures (x groups of channels, but for weight_grad)
  int lanes;  // weight_grad: groups of channels that a block computes, a power of two up to 32
  int splits;              // weight_grad: parts of the sum over pixels
  Divider channel_groups;  // V channels each
  Divider column_strips, row_strips;
};

// Sums the partial sums of weight_grad.
struct DepthwiseFinishArgs {
  const float* partial;  // [splits][taps][channels]
  void* filter;          // [channels][taps]
  int splits, taps, channels;
};

}  // namespace reformer
