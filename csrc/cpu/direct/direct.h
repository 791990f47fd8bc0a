// The three directions of the direct convolution, given the config of a problem.
#pragma once

#include "config.h"
#include "conv/solver.h"

namespace reformer {

// Forward and input_grad. The workspace holds the weights in the order in which tiles read them.
int64_t direct_correlate_workspace(const ConvProblem& problem);
void direct_correlate(const ConvProblem& problem, const Device& device, const DirectConfig& config,
                      const ConvBuffers& buffers);

// The workspace holds the sums of each part of the images, which are added up in the order of the parts.
int64_t direct_weight_grad_workspace(const ConvProblem& problem, const Device& device);
void direct_weight_grad(const ConvProblem& problem, const Device& device, const DirectConfig& config,
                        const ConvBuffers& buffers);

// Element strides of a dense filter; channels are those of the source and target of a group.
struct DirectFilterView {
  int64_t k, c, r, s;
  explicit DirectFilterView(const ConvProblem& p)
      : k(int64_t{p.group_c()} * p.r * p.s),
        c(p.layout == Layout::nchw ? int64_t{p.r} * p.s : 1),
        r(p.layout == Layout::nchw ? p.s : int64_t{p.s} * p.group_c()),
        s(p.layout == Layout::nchw ? 1 : p.group_c()) {}
};

}  // namespace reformer
