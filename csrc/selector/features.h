// A problem as the sequence that the selector reads: the only definition, used for training and for choosing. Free of
// torch and HIP.
//
// Each of kTokens tokens is a weighted sum of at most kTerms rows of one embedding matrix. A number x lies between two
// knots, which are x = 0, 1, ... at first and then four per octave (or one per octave for quantities with many digits).
// It contributes the rows of both knots, weighted linearly, so that an embedding is a piecewise linear function, of x
// near 0 and nearly of log x beyond. Sizes also contribute the row of the largest power of two that divides them. The
// terms of each token and their meaning are defined only in features.cpp.
#pragma once

#include <array>
#include <cstdint>

#include "conv/problem.h"
#include "device.h"
#include "program/traits.h"

namespace reformer {

// To be changed whenever the same problem, or program after it, gets other features: weights trained on another version
// are rejected.
constexpr int32_t kFeatureVersion = 1;

constexpr int32_t kTokens = 16, kTerms = 6;

struct Features {
  struct Term {
    int32_t row = 0;  // row of the embedding matrix
    float weight = 0;
  };
  std::array<std::array<Term, kTerms>, kTokens> tokens;
};

Features features(const ConvProblem& problem, const Device& device);

int32_t feature_rows();  // rows of the embedding matrix

// The solvers of the two ways to run a program after a convolution: the one whose kernel runs it, and the fastest one
// before a separate pass. slower: how much longer the former's convolution alone takes, as the difference of logits.
struct FusionKernels {
  const char* fused = "";
  const char* separate = "";
  double slower = 0;
};

// The sequence for a program after a convolution: the convolution's features, with the program's terms added to its
// tokens.
Features epilogue_features(const ConvProblem& problem, const Device& device, const ProgramTraits& program,
                           const FusionKernels& kernels);

int32_t epilogue_feature_rows();

// The sequence for a matrix product and the program in its kernel or after it. Bytes and arithmetic are in microseconds
// by the GPU's data sheet, so that one selector serves GPUs of one architecture whose memory differs.
Features product_features(const ConvProblem& problem, const Device& device, const ProgramTraits& program);

int32_t product_feature_rows();

}  // namespace reformer
