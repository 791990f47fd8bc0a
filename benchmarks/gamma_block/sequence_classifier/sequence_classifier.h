// A classifier of sequences (Classifier in gamma_block.py): the embeddings of words plus learned positions,
// Γ-blocks, the mean over the positions, a linear layer. It runs on one thread and keeps its scratch, for the longest
// sequence, so that logits() allocates nothing: one call at a time.
#pragma once

#include "device.h"
#include "selector/packing.h"

namespace reformer {

struct SequenceClassifierShape {
  int32_t words, longest;  // rows of the embedding matrix and of the positions
  int32_t width, hidden, blocks, classes;
};

struct PackedSequenceClassifier {
  const float *embedding, *positions;  // [words, width], [longest, width]
  PackedBlocks blocks;
  PackedLinear head;
};

class SequenceClassifier {
 public:
  // Copies the tensors: positions [longest, width], embedding.weight [words, width], the blocks' (packing.h),
  // head.weight [classes, width], head.bias. Throws std::invalid_argument.
  SequenceClassifier(const SequenceClassifierShape& shape, const float* const* tensors);

  // Writes one logit a class. Throws std::invalid_argument.
  void logits(const int64_t* words, int64_t length, float* out, Isa isa = cpu_isa());

 private:
  SequenceClassifierShape shape_;
  FloatMemory memory_, scratch_;
  PackedSequenceClassifier packed_{};
};

}  // namespace reformer
