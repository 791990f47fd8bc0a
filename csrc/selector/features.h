// A problem as the sequence that the selector reads: the only definition, used to train and to choose. No torch, no
// HIP.
//
// Each of kTokens tokens is a sum of at most kTerms rows of one embedding matrix, each with a weight. A number x lies
// between two knots, which are x = 0, 1, ... at first and four an octave from then on (or one an octave, for quantities
// of many digits): it contributes the rows of both, weighted linearly, so that an embedding is a piecewise linear
// function of x near 0 and nearly of log x beyond. Sizes also contribute the row of the largest power of two that
// divides them. Which token a term belongs to, and what it means, is said once, in features.cpp.
#pragma once

#include <array>
#include <cstdint>

#include "conv/problem.h"
#include "device.h"
#include "program/traits.h"

namespace reformer {

// Changes whenever the same problem, or program behind it, would give other features: weights trained on another
// version are rejected.
constexpr int32_t kFeatureVersion = 1;

constexpr int32_t kTokens = 16, kTerms = 6;

struct Features {
  struct Term {
    int32_t row = 0;  // of the embedding matrix
    float weight = 0;
  };
  std::array<std::array<Term, kTerms>, kTokens> tokens;
};

Features features(const ConvProblem& problem, const Device& device);

int32_t feature_rows();  // of the embedding matrix

// The solvers of the kernels that would run a program behind a convolution: in it, or the fastest one before it.
// slower: how much longer the former takes by itself, as the logarithm that logits differ by.
struct FusionKernels {
  const char* fused = "";
  const char* separate = "";
  double slower = 0;
};

// The sequence for a program behind a convolution: the same, and in its tokens what the program adds.
Features epilogue_features(const ConvProblem& problem, const Device& device, const ProgramTraits& program,
                           const FusionKernels& kernels);

int32_t epilogue_feature_rows();

}  // namespace reformer
