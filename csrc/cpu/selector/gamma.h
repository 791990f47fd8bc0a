// The arithmetic of the selector (Reformer in torch_reformer/selector/model.py) on packed weights. No torch, no
// allocation: everything between the features and the logits is on the stack.
#pragma once

#include "../../device.h"
#include "features.h"

namespace reformer {

// Larger networks are refused, so that the stack suffices.
constexpr int32_t kMaxWidth = 128, kMaxHidden = 512, kMaxBlocks = 16, kMaxCandidates = 256;
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

struct PackedSelector {
  int32_t width, hidden, blocks;
  const float* embedding;  // [rows, width]
  const float* device;     // [width]
  PackedBlock block[kMaxBlocks];
  PackedLinear head;
};

// Writes head.outputs logits.
void infer(const PackedSelector& weights, const Features& features, Isa isa, float* logits);

}  // namespace reformer
