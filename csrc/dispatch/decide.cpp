#include "decide.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "hip/gpu_model.h"
#include "jit/gpu.h"
#include "selectors.h"
#include "solver_list.h"

namespace reformer {
namespace {

const char* excluded(const Solver& solver, size_t index, const ConvProblem& problem, const Device& device,
                     const Config& config) {
  if (index < config.forbidden.size() && config.forbidden[index]) return "it is forbidden by the configuration";
  if (config.deterministic_only && !solver.deterministic())
    return "it is not deterministic, and the configuration asks for that";
  if (!config.allow_reduced_accuracy && !solver.full_accuracy(problem, device)) return solver.inaccuracy();
  if (solver.workspace_bytes(problem, device) > config.workspace_limit)
    return "its workspace is larger than the configured limit";
  return nullptr;
}

// Why it can't compute the problem there; null if it can.
const char* refusal(const Solver& solver, const ConvProblem& problem, const Device& device) {
  if (!solver.runs_on(device.kind)) return "it does not run on this kind of device";
  if (&solver != solvers().front() && !problem.fits_32_bits())
    return "its stride, padding or dilation is too large: kernels count pixels by 32 bits";
  const bool has_kernels = !solver.runs_on(DeviceKind::cpu);
  if (const char* why = has_kernels ? gpu::unavailable(device.arch) : nullptr) return why;
  return solver.refusal(problem, device);
}

// Why it may not be chosen without being forced; null if it may.
const char* refusal(const Solver& solver, size_t index, const ConvProblem& problem, const Device& device,
                    const Config& config) {
  if (const char* why = refusal(solver, problem, device)) return why;
  if (!solver.eligible()) return "it is the tests' oracle: it runs only when forced";
  return excluded(solver, index, problem, device, config);
}

// For each of solvers() its logit, or kUnknown: the selector does not know it, or is damaged (NaN).
using Scores = std::vector<float>;
constexpr float kUnknown = -std::numeric_limits<float>::infinity();

Scores scores_of(const Selector& selector, const ConvProblem& problem, const Device& device) {
  float logits[kMaxCandidates];
  selector.logits(features(problem, device), logits);
  Scores scores(solvers().size());
  for (size_t i = 0; i < scores.size(); ++i) {
    const int32_t candidate = selector.candidate_of(i);
    scores[i] = candidate >= 0 && logits[candidate] > kUnknown ? logits[candidate] : kUnknown;
  }
  return scores;
}

// Null if none of those that the selector knows may be chosen; may(solver): whether it may otherwise.
template <class May>
const Solver* most_probable(const Selector& selector, const ConvProblem& problem, const Device& device,
                            const Config& config, const May& may) {
  Scores scores = scores_of(selector, problem, device);
  for (;;) {  // rarely more than twice
    const auto best = std::max_element(scores.begin(), scores.end());
    if (*best == kUnknown) return nullptr;
    const auto index = size_t(best - scores.begin());
    const Solver& solver = *solvers()[index];
    if (!refusal(solver, index, problem, device, config) && may(solver)) return &solver;
    *best = kUnknown;
  }
}

const Solver& least_estimate(const ConvProblem& problem, const Device& device, const Config& config) {
  const Solver* best = solvers().front();
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < solvers().size(); ++i) {
    const Solver& solver = *solvers()[i];
    if (refusal(solver, i, problem, device, config)) continue;
    const double estimate = solver.estimate_us(problem, device);
    if (estimate < least) best = &solver, least = estimate;
  }
  return *best;
}

const Solver& choose(const ConvProblem& problem, const Device& device) {
  const Config now = config();
  if (now.forced >= 0) {
    const Solver& forced = *solvers()[size_t(now.forced)];
    if (!refusal(forced, problem, device) && !excluded(forced, size_t(now.forced), problem, device, now)) return forced;
  }
  if (const auto selector = find_selector(device))
    if (const Solver* best = most_probable(*selector, problem, device, now, [](const Solver&) { return true; }))
      return *best;
  return least_estimate(problem, device, now);
}

const Solver& choose(const ConvProblem& problem, const Device& device, const ProgramCall* program) {
  const Solver& alone = choose(problem, device);
  const Config now = config();
  if (!program || device.kind == DeviceKind::cpu || now.forced >= 0) return alone;
  const auto takes = [&](const Solver& solver) { return runs_program(solver, problem, device, *program); };
  if (takes(alone)) return alone;
  const Solver* best = nullptr;
  double least = gpu_unfused_us(problem);
  for (size_t i = 0; i < solvers().size(); ++i) {
    const Solver& solver = *solvers()[i];
    if (refusal(solver, i, problem, device, now) || !takes(solver)) continue;
    const double estimate = solver.estimate_us(problem, device);
    if (estimate < least) best = &solver, least = estimate;
  }
  if (!best) return alone;
  if (const auto selector = find_selector(device))
    if (const Solver* known = most_probable(*selector, problem, device, now, takes)) return *known;
  return *best;
}

// Fills in the probabilities: softmax of the logits over those that may be chosen.
void add_probabilities(const Selector& selector, const ConvProblem& problem, const Device& device,
                       std::vector<Candidate>& candidates) {
  const Scores scores = scores_of(selector, problem, device);
  const auto known = [&](const Candidate& candidate) {
    return !candidate.refusal && scores[candidate.index] != kUnknown;
  };
  double most = kUnknown, sum = 0;
  for (const Candidate& candidate : candidates)
    if (known(candidate)) most = std::max(most, double(scores[candidate.index]));
  for (Candidate& candidate : candidates)
    if (known(candidate)) sum += candidate.probability = std::exp(scores[candidate.index] - most);
  for (Candidate& candidate : candidates)
    if (known(candidate)) candidate.probability /= sum;
}

// Sets of four entries, so that it is bounded, and allocates at the first use only. A network of a few hundred problems
// fits without any that displace each other: a decision takes a hundred times as long as a hit.
struct Cache {
  static constexpr size_t kSets = 512, kWays = 4;
  struct Entry {
    ConvProblem problem;
    int32_t threads;
    bool tf32;
    int64_t program;  // its number, or -1
    const Solver* solver;
  };
  struct Set {
    uint32_t tags[kWays];  // of the entries: bits of the hash, never 0; 0 if there is none
    uint32_t next;         // the entry to replace
    Entry entries[kWays];
  };
  std::unique_ptr<Set[]> sets{new Set[kSets]};
  std::string arch;  // of all entries: a thread that changes device starts anew
  DeviceKind kind = DeviceKind::cpu;
  Isa isa = Isa::plain;
  uint64_t epoch = 0;
  CacheCounts counts{0, 0};

  void forget_if_stale(const Device& device) {
    const uint64_t now = config_epoch();
    if (epoch == now && kind == device.kind && isa == device.isa && arch == device.arch) return;
    for (size_t i = 0; i < kSets; ++i) std::fill(sets[i].tags, sets[i].tags + kWays, sets[i].next = 0);
    epoch = now;
    kind = device.kind;
    isa = device.isa;
    arch = device.arch;
  }

  const Solver& decide(const ConvProblem& problem, const Device& device, const ProgramCall* call) {
    forget_if_stale(device);
    const int64_t program = call ? call->program.number : -1;
    const uint64_t key = hash(problem) ^ uint64_t(program + 1) * 0x9e3779b97f4a7c15u;
    const uint32_t tag = static_cast<uint32_t>(key >> 32) | 1;
    Set& set = sets[key % kSets];
    for (size_t i = 0; i < kWays; ++i) {
      const Entry& entry = set.entries[i];
      if (set.tags[i] == tag && entry.threads == device.threads && entry.tf32 == device.tf32 &&
          entry.program == program && entry.problem == problem) {
        ++counts.hits;
        return *entry.solver;
      }
    }
    ++counts.misses;
    const Solver& choice = choose(problem, device, call);
    const size_t place = set.next++ % kWays;
    set.tags[place] = tag;
    set.entries[place] = {problem, device.threads, device.tf32, program, &choice};
    return choice;
  }
};

thread_local Cache cache;

}  // namespace

std::vector<Candidate> candidates(const ConvProblem& problem, const Device& device, const Config& config) {
  std::vector<Candidate> result;
  for (size_t i = 0; i < solvers().size(); ++i) {
    const Solver& solver = *solvers()[i];
    if (!solver.runs_on(device.kind)) continue;
    Candidate candidate{i, &solver, refusal(solver, i, problem, device, config)};
    if (!refusal(solver, problem, device)) {
      candidate.estimate_us = solver.estimate_us(problem, device);
      candidate.workspace_bytes = solver.workspace_bytes(problem, device);
    }
    result.push_back(candidate);
  }
  if (const auto selector = find_selector(device)) add_probabilities(*selector, problem, device, result);
  return result;
}

const Solver& decide(const ConvProblem& problem, const Device& device) {
  return cache.decide(problem, device, nullptr);
}
const Solver& decide(const ConvProblem& problem, const Device& device, const ProgramCall& program) {
  return cache.decide(problem, device, &program);
}

bool runs_program(const Solver& solver, const ConvProblem& problem, const Device& device, const ProgramCall& program) {
  return solver.takes(problem, device, program) &&
         solver.workspace_bytes_with(program, problem, device) <= config().workspace_limit;
}

CacheCounts decision_cache_counts() { return cache.counts; }

}  // namespace reformer
