// The second kernel of depthwise weight gradients (depthwise.cpp), for all that leave partial sums.
#pragma once

#include "conv/solver.h"

namespace reformer {

// Adds up the workspace's fp32 [splits][R * R][channels], always in the same order, into the filter.
void finish_depthwise_weight_grad(const ConvProblem& problem, int32_t splits, const ConvBuffers& buffers);

inline int64_t depthwise_workspace_bytes(const ConvProblem& p, int32_t splits) {
  return p.direction == Direction::weight_grad ? int64_t{splits} * p.r * p.s * p.c * int64_t(sizeof(float)) : 0;
}

}  // namespace reformer
