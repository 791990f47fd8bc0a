// A stack of Γ-blocks (GammaBlock in torch_reformer/selector/model.py) with packed weights. The arithmetic is in
// gamma_body.h and allocates nothing: callers provide the memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace reformer {

constexpr int32_t kMaxWidth = 128, kMaxHidden = 512, kMaxBlocks = 16;
constexpr int32_t kPackStep = 16;  // floats; rows begin at multiples of it, so that whole vectors can be read

// A layer y = x M + bias with the matrix as [inputs, outputs], the transpose of PyTorch's.
struct PackedLinear {
  const float *matrix, *bias;
  int32_t inputs, outputs;
  int32_t step;  // floats from one row of the matrix to the next
};

struct PackedBlock {
  const float* taps;  // [3, width]
  PackedLinear qkv, up, down;
};

struct PackedBlocks {
  int32_t width, hidden, count;
  PackedBlock block[kMaxBlocks];
};

// Positions per call of the MLP: bounds the scratch memory for the hidden layer of long sequences.
constexpr int32_t kMlpPositions = 64;

// Floats of scratch for a sequence of so many positions, in addition to the sequence itself.
constexpr int64_t gamma_scratch(int32_t width, int32_t hidden, int32_t length) {
  return int64_t{length} * 4 * width + std::min(length, kMlpPositions) * hidden;
}

}  // namespace reformer
