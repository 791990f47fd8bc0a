// The choice of a solver: a pure function of problem, device (PyTorch's tf32 setting included), weights and
// configuration. No timing and no randomness: every rank decides alike.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "config.h"
#include "conv/solver.h"
#include "selector/features.h"

namespace reformer {

struct Candidate {
  size_t index;  // in solvers()
  const Solver* solver;
  const char* reason = nullptr;     // why it may not be chosen; null if it may
  double estimate_us = 0;           // from the solver's cost model; 0 without a plan
  int64_t workspace_bytes = 0;      // 0 without a plan
  const char* condition = nullptr;  // as in ConvPlan
  // Probability that it is the fastest of the solvers that may be chosen; NaN if there is no selector or it does not
  // know this solver.
  double probability = std::numeric_limits<double>::quiet_NaN();
};

// Every solver that runs on such a device, in the order of solvers(): its estimate for the problem, or the reason why
// it does not apply or is excluded by the configuration. With a program, kernels have to run it themselves, except for
// PyTorch's, after which it is a kernel of its own.
std::vector<Candidate> candidates(const ConvProblem& problem, const Device& device, const Config& config,
                                  const ProgramCall* program = nullptr);

struct Decision {
  const Solver* solver = nullptr;
  std::shared_ptr<const ConvPlan> plan;
};

// The forced solver if it applies. Else, among the solvers that may be chosen, the one with the greatest logit of the
// device's selector; if there is no selector or it knows none of them, the one with the least estimate. Ties go to the
// earlier solver. If a program follows, choose_fusion() decides.
// Decisions are cached per thread with their plans, so that a repeated call takes tens of nanoseconds; the reference is
// valid until the thread's next call.
const Decision& decide(const ConvProblem& problem, const Device& device, const ProgramCall* program = nullptr);

// The two ways to run a program after a convolution: the convolution's kernel runs it (the plan has run_with), or a
// kernel of its own does afterwards.
struct FusionChoice {
  Decision separate, fused;  // fused: empty if no kernel that may be chosen runs the program
  bool is_fused = false;
  // Probability that fused is faster, by the device's epilogue or product selector; NaN if there was none to ask.
  double probability = std::numeric_limits<double>::quiet_NaN();
  std::optional<Features> features;  // the input of the epilogue selector, if the kernels of both ways are ranked

  const Decision& chosen() const { return is_fused ? fused : separate; }
};

// fused is the separate way's own kernel if that runs the program, else the one with the greatest logit among kernels
// that do. The epilogue selector chooses between fused and separate. Where it can't, the separate way's own kernel runs
// the program itself if it can, and other kernels do if they are estimated to take no longer than another kernel and a
// separate pass.
//
// For a matrix product, such as a 1x1 convolution of NHWC pixels in 16 bits, the selector of products ranks the kernels
// with the program in them, and PyTorch's product before a separate pass. Without such a selector a kernel runs the
// program itself (products.h).
FusionChoice choose_fusion(const ConvProblem& problem, const Device& device, const ProgramCall& program);

// How often this thread's decide() was answered from its cache, and how often it had to compute a decision.
struct CacheCounts {
  int64_t hits, misses;
};
CacheCounts decision_cache_counts();

}  // namespace reformer
