// The choice: a pure function of problem, device (PyTorch's tf32 setting included), weights and configuration. No
// timing, no randomness, the same on every rank.
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
  double estimate_us = 0;           // from the solver's cost model; 0 if it has no plan
  int64_t workspace_bytes = 0;      // 0 if it has no plan
  const char* condition = nullptr;  // ConvPlan's
  // To be the fastest of those that may be chosen; NaN if there is no selector, or it does not know this solver.
  double probability = std::numeric_limits<double>::quiet_NaN();
};

// Each solver that runs on such a device, for the problem: its estimate, or the reason why it does not apply.
// In the order of solvers(). One that the configuration excludes has that for its reason.
std::vector<Candidate> candidates(const ConvProblem& problem, const Device& device, const Config& config);

struct Decision {
  const Solver* solver = nullptr;
  std::shared_ptr<const ConvPlan> plan;
};

// The forced solver where it applies; or, among those that may be chosen, the one with the greatest logit of the
// device's selector; or, if there is no selector or it knows none of them, the one with the least estimate. Ties go to
// the earlier solver. Remembered per thread with its plan, so that asking again costs tens of nanoseconds; good until
// the thread asks again.
// Where a program follows, as choose_fusion() has it.
const Decision& decide(const ConvProblem& problem, const Device& device, const ProgramCall* program = nullptr);

// The two ways to run a program behind a convolution: its kernel does (the plan has run_with), or a kernel of the
// program's own does after it.
struct FusionChoice {
  Decision separate, fused;  // fused: none if no kernel that may be chosen runs the program
  bool is_fused = false;
  // That fused is the faster one, by the device's selector of epilogues; NaN if that was not asked.
  double probability = std::numeric_limits<double>::quiet_NaN();
  std::optional<Features> features;  // what such a selector reads, if kernels of both ways are ranked

  const Decision& chosen() const { return is_fused ? fused : separate; }
};

// fused is the separate way's own kernel where that runs the program, else the one with the greatest logit of those
// that do. The epilogue selector chooses between fused and separate. Where it can't, that kernel runs the program
// itself, and others do if their estimate says that this takes no longer than another kernel and a pass after it.
FusionChoice choose_fusion(const ConvProblem& problem, const Device& device, const ProgramCall& program);

// How often this thread's decide() found the answer in its cache, and how often it had to think.
struct CacheCounts {
  int64_t hits, misses;
};
CacheCounts decision_cache_counts();

}  // namespace reformer
