// The second kernel of depthwise weight gradients (depthwise.cpp), for all kernels that leave partial sums.
#pragma once

#include <optional>

#include "conv/solver.h"
#include "depthwise.h"
#include "jit/gpu.h"

namespace reformer {

// Adds up the fp32 [splits][R * R][channels] of the workspace, in a fixed order, into the filter.
class DepthwiseFinish {
 public:
  DepthwiseFinish(const ConvProblem& problem, int32_t splits);
  int64_t workspace_bytes() const {
    return int64_t{args_.splits} * args_.taps * args_.channels * int64_t(sizeof(float));
  }
  void run(const ConvBuffers& buffers) const;

 private:
  const gpu::Kernel kernel_;
  gpu::Launch launch_;
  DepthwiseArgs args_{};
};

// Present only for weight gradients.
inline std::optional<DepthwiseFinish> depthwise_finish(const ConvProblem& problem, int32_t splits) {
  return problem.direction == Direction::weight_grad ? std::optional<DepthwiseFinish>({problem, splits}) : std::nullopt;
}

}  // namespace reformer
