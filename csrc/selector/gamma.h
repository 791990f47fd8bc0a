// A stack of Γ-blocks (GammaBlock in torch_reformer/selector/model.py) with packed weights. gamma_body.h has the
// arithmetic, which allocates nothing: callers bring the memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace reformer {

constexpr int32_t kMaxWidth = 128, kMaxHidden = 512, kMaxBlocks = 16;
constexpr int32_t kPackStep = 16;  // floats; rows begin at multiples of it, so that whole vectors can be read

// A layer y = x M + bias, with the matrix as [inputs, outputs]: the transpose of PyTorch's.
struct PackedLinear {
  const float *matrix, *bias;
  int32_t inputs, outputs;
  int32_t step;  // floats from row to row of the matrix
};

struct PackedBlock {
  const float* taps;  // [3, width]
  PackedLinear qkv, up, down;
};

struct PackedBlocks {
  int32_t width, hidden, count;
  PackedBlock block[kMaxBlocks];
};

// The MLP takes so many positions at a time, so that the scratch of a long sequence has no hidden layer of its length.
constexpr int32_t kMlpPositions = 64;

// Floats of scratch for a sequence of so many positions, beside the sequence itself.
constexpr int64_t gamma_scratch(int32_t width, int32_t hidden, int32_t length) {
  return int64_t{length} * 4 * width + std::min(length, kMlpPositions) * hidden;
}

}  // namespace reformer
