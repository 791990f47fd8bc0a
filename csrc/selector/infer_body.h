// The body of infer.cpp, compiled once for each instruction set.
#include "gamma_body.h"

namespace reformer::REFORMER_ISA {

// Embeds the features: for every token the sum over its terms of weight times row; the device's embedding is added to
// the first.
inline void embed(const PackedSelector& net, const Features& features, float* x) {
  const int32_t width = net.blocks.width;
  for (int32_t c = 0; c < width; c += kFloats)
    for (int32_t token = 0; token < kTokens; ++token) {
      Floats sum = token == 0 ? load<float>(net.device + c) : Floats{};
      for (const Features::Term& term : features.tokens[size_t(token)])
        sum = fma<float>(broadcast(term.weight), load<float>(net.embedding + int64_t{term.row} * width + c), sum);
      store<float>(x + token * width + c, sum);
    }
}

inline void infer(const PackedSelector& net, const Features& features, const GemmKernels<float>& kernels,
                  float* logits) {
  // The memory for the whole sequence is on the stack, for the greatest width.
  alignas(64) float x[kTokens * kMaxWidth + gamma_scratch(kMaxWidth, kMaxHidden, kTokens)];
  float* const scratch = x + kTokens * net.blocks.width;
  embed(net, features, x);
  gamma_blocks(net.blocks, kernels, kTokens, 1, x, scratch);  // the output is read from the first position
  normalise(x, 1, net.blocks.width, scratch);
  multiply(net.head, kernels, scratch, 1, 0, net.head.outputs, logits, 0);
}

}  // namespace reformer::REFORMER_ISA
