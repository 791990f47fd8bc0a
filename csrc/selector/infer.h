// The selector's arithmetic (Reformer in torch_reformer/selector/model.py), from features to logits. Free of torch and
// of allocations: intermediate results are on the stack.
#pragma once

#include "device.h"
#include "features.h"
#include "gamma.h"

namespace reformer {

struct PackedSelector {
  const float* embedding;  // [rows, width]
  const float* device;     // [width]
  PackedBlocks blocks;
  PackedLinear head;
};

// Writes head.outputs logits.
void infer(const PackedSelector& weights, const Features& features, Isa isa, float* logits);

}  // namespace reformer
