// The body of sequence_classifier.cpp, compiled once for each instruction set.
#include "selector/gamma_body.h"

namespace reformer::REFORMER_ISA {

inline void embed(const PackedSequenceClassifier& net, const int64_t* words, int32_t length, float* x) {
  const int32_t width = net.blocks.width;
  for (int32_t i = 0; i < length; ++i) {
    const float *word = net.embedding + words[i] * width, *position = net.positions + i * width;
    for (int32_t c = 0; c < width; c += kFloats)
      store<float>(x + i * width + c, load<float>(word + c) + load<float>(position + c));
  }
}

inline void mean_of_rows(const float* x, int32_t rows, int32_t width, float* mean) {
  for (int32_t c = 0; c < width; c += kFloats) {
    Floats sum{};
    for (int32_t i = 0; i < rows; ++i) sum += load<float>(x + i * width + c);
    store<float>(mean + c, sum / float(rows));
  }
}

inline void classify(const PackedSequenceClassifier& net, const int64_t* words, int32_t length,
                     const GemmKernels<float>& kernels, float* x, float* logits) {
  const int32_t width = net.blocks.width;
  float* const scratch = x + length * width;
  embed(net, words, length, x);
  gamma_blocks(net.blocks, kernels, length, length, x, scratch);
  mean_of_rows(x, length, width, scratch);
  normalise(scratch, 1, width, scratch);
  multiply(net.head, kernels, scratch, 1, 0, net.head.outputs, logits, 0);
}

}  // namespace reformer::REFORMER_ISA
