#include "decide.h"

#include <memory>

namespace reformer {
namespace {

const char* excluded(const Solver& solver, size_t index, const ConvProblem& problem, const Device& device,
                     const Config& config) {
  if (config.forbidden >> index & 1) return "it is forbidden by the configuration";
  if (config.deterministic_only && !solver.deterministic())
    return "it is not deterministic, and the configuration asks for that";
  if (!config.allow_reduced_accuracy && !solver.full_accuracy(problem))
    return "its error may exceed twice PyTorch's, and the configuration does not allow that";
  if (solver.workspace_bytes(problem, device) > config.workspace_limit)
    return "its workspace is larger than the configured limit";
  return nullptr;
}

const Solver& choose(const ConvProblem& problem, const Device& device) {
  const Config now = config();
  if (now.forced >= 0) {
    const Solver& forced = *solvers()[size_t(now.forced)];
    if (!forced.refusal(problem, device) && !excluded(forced, size_t(now.forced), problem, device, now)) return forced;
  }
  const Candidate* best = nullptr;
  const auto all = candidates(problem, device, now);
  for (const Candidate& candidate : all)
    if (!candidate.refusal && (!best || candidate.estimate_us < best->estimate_us)) best = &candidate;
  return best ? *best->solver : *solvers().front();
}

// A direct-mapped table: bounded, no allocation after the first use, and a collision only costs a second decision.
struct Cache {
  struct Entry {
    ConvProblem problem;
    const Solver* solver = nullptr;
    int32_t threads = 0;
  };
  static constexpr size_t kEntries = 2048;
  std::unique_ptr<Entry[]> entries{new Entry[kEntries]};
  std::string arch;  // of all entries: a thread that changes device starts anew
  DeviceKind kind = DeviceKind::cpu;
  Isa isa = Isa::plain;
  uint64_t epoch = 0;
  CacheCounts counts{0, 0};

  void forget_if_stale(const Device& device) {
    const uint64_t now = config_epoch();
    if (epoch == now && kind == device.kind && isa == device.isa && arch == device.arch) return;
    for (size_t i = 0; i < kEntries; ++i) entries[i].solver = nullptr;
    epoch = now;
    kind = device.kind;
    isa = device.isa;
    arch = device.arch;
  }
};

thread_local Cache cache;

}  // namespace

std::vector<Candidate> candidates(const ConvProblem& problem, const Device& device, const Config& config) {
  std::vector<Candidate> result;
  for (size_t i = 0; i < solvers().size(); ++i) {
    const Solver& solver = *solvers()[i];
    Candidate candidate{&solver, solver.refusal(problem, device), 0, 0};
    if (!candidate.refusal && !solver.eligible())
      candidate.refusal = "it is the tests' oracle: it runs only when forced";
    if (!candidate.refusal) {
      candidate.refusal = excluded(solver, i, problem, device, config);
      candidate.estimate_us = solver.estimate_us(problem, device);
      candidate.workspace_bytes = solver.workspace_bytes(problem, device);
    }
    result.push_back(candidate);
  }
  return result;
}

const Solver& decide(const ConvProblem& problem, const Device& device) {
  cache.forget_if_stale(device);
  Cache::Entry& entry = cache.entries[hash(problem) % Cache::kEntries];
  if (entry.solver && entry.threads == device.threads && entry.problem == problem) {
    ++cache.counts.hits;
    return *entry.solver;
  }
  ++cache.counts.misses;
  entry = {problem, &choose(problem, device), device.threads};
  return *entry.solver;
}

CacheCounts decision_cache_counts() { return cache.counts; }

}  // namespace reformer
