// What the kernels of layer norm and their host share.
#pragma once

namespace reformer {

constexpr int kLayerNormThreads = 128;
constexpr int kLayerNormFinishColumns = 32;  // columns of a block of the finish

struct LayerNormArgs {
  const void* input;   // [rows][width]
  const void* weight;  // [width]
  const void* bias;
  const void* grad;           // backward: the result's gradient
  void* result;               // backward: input's gradient
  float* statistics;          // [2][rows]: each row's mean, and one over its deviation
  float* partial;             // backward: [2][parts][width], sums over rows of what weight and bias are multiplied by
  void *of_weight, *of_bias;  // backward: their gradients, or null
  float eps;
  int rows, width;
  int parts;  // blocks
};

}  // namespace reformer
