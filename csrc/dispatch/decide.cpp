#include "decide.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "hip/gpu_cost.h"
#include "jit/gpu.h"
#include "products.h"
#include "program/program_key.h"
#include "selectors.h"
#include "set_cache.h"
#include "solver_list.h"

namespace reformer {
namespace {

using PlanPointer = std::shared_ptr<const ConvPlan>;

// Why the configuration excludes a plan of the solver of this index; null if it doesn't.
const char* excluded(const ConvPlan& plan, size_t index, const Config& config) {
  if (index == 0) return nullptr;  // one solver must always apply
  if (index < config.forbidden.size() && config.forbidden[index]) return "it is forbidden by the configuration";
  if (config.deterministic_only && !plan.deterministic)
    return "it is not deterministic, and the configuration asks for that";
  if (!config.allow_reduced_accuracy && plan.inaccuracy) return plan.inaccuracy;
  if (plan.workspace_bytes > config.workspace_limit) return "its workspace is larger than the configured limit";
  return nullptr;
}

// The solver's plan, ignoring the configuration.
Planned<ConvPlan> planned(const Solver& solver, const ConvProblem& problem, const Device& device) {
  if (!solver.runs_on(device)) return "it does not run on this kind of device";
  if (&solver != solvers().front() && !problem.fits_32_bits())
    return "its stride, padding or dilation is too large: kernels count pixels by 32 bits";
  if (const char* why = solver.has_gpu_kernels() ? gpu::unavailable(device.arch) : nullptr) return why;
  return solver.plan(problem, device);
}

// Why a solver with this plan may be chosen only if it is forced; null if it may be chosen freely.
const char* forbidden_because(const Solver& solver, size_t index, const ConvPlan& plan, const Config& config) {
  return solver.eligible() ? excluded(plan, index, config) : "it is the tests' oracle: it runs only when forced";
}

// The logit of each of solvers(), or kUnknown if the selector does not know it or its weights are damaged (NaN,
// infinity).
using Scores = std::vector<float>;
constexpr float kUnknown = -std::numeric_limits<float>::infinity();

Scores scores_of(const Selector& selector, const Features& features) {
  float logits[kMaxCandidates];
  selector.logits(features, logits);
  Scores scores(solvers().size());
  for (size_t i = 0; i < scores.size(); ++i) {
    const int32_t candidate = selector.candidate_of(i);
    scores[i] = candidate >= 0 && std::isfinite(logits[candidate]) ? logits[candidate] : kUnknown;
  }
  return scores;
}

// The scores of the kernels for a problem, and for a matrix product of the kernels that also run the program; empty if
// there is no selector.
Scores scores_of(const ConvProblem& problem, const Device& device, const ProgramCall* program) {
  if (problem.is_product())
    if (const auto selector = find_selector(device, Decides::products)) {
      const ProgramTraits traits = program ? ProgramTraits(*program) : ProgramTraits();
      return scores_of(*selector, product_features(problem, device, traits));
    }
  const auto selector = find_selector(device);
  return selector ? scores_of(*selector, features(problem, device)) : Scores();
}

Device as_configured(Device device, const Config& config) {
  device.deterministic |= device.is_amd() && config.deterministic_only;
  return device;
}

// The computation of one decision.
class Choice {
 public:
  Choice(const ConvProblem& problem, const Device& device)
      : config_(config()), problem_(problem), device_(as_configured(device, config_)) {}

  Decision alone() const {
    if (config_.forced >= 0) {
      const Solver& forced = *solvers()[size_t(config_.forced)];
      const PlanPointer plan = planned(forced, problem_, device_).plan;
      if (plan && !excluded(*plan, size_t(config_.forced), config_)) return {&forced, plan};
    }
    const auto plan_of = [&](size_t index) { return allowed(index); };
    if (const Decision best = most_probable(scores(), plan_of); best.solver) return best;
    return least_estimate();
  }

  FusionChoice with(const ProgramCall& program) const {
    FusionChoice found;
    if (by_product_selector(program, found)) return as_set(std::move(found));
    found.separate = alone();
    if (const Decision product = of_product(program); product.solver) {
      found.fused = product;
      found.is_fused = true;
    } else if (PlanPointer plan = fused(*found.separate.solver, program)) {
      found.fused = {found.separate.solver, std::move(plan)};
      found.is_fused = true;
      if (config_.forced < 0) by_selector(program, found);
    } else if (config_.forced < 0) {
      found.fused = most_probable(scores(), [&](size_t index) { return allowed_with(program, index); });
      if (!by_selector(program, found)) by_estimate(program, found);
    }
    return as_set(std::move(found));
  }

 private:
  static size_t index_of(const Solver& solver) {
    return size_t(std::find(solvers().begin(), solvers().end(), &solver) - solvers().begin());
  }

  // The choice with the way that the configuration asks for, if there is one.
  FusionChoice as_set(FusionChoice choice) const {
    if (choice.fused.solver && config_.epilogues != Epilogues::chosen)
      choice.is_fused = config_.epilogues == Epilogues::fused;
    return choice;
  }

  // True if the selector of products has chosen: it compares kernels that run the program and PyTorch's product before
  // a separate pass. It was trained with programs of forward products; a 1x1 convolution of 16-bit pixels is one, but
  // for those of few channels, for which gpu_gemm_* has narrower tiles.
  bool by_product_selector(const ProgramCall& program, FusionChoice& choice) const {
    const ConvProblem product = problem_.as_product();
    if (!product.is_product() || problem_.direction != Direction::forward) return false;
    const bool is_known = is_16_bit(problem_.dtype) && product.k >= kLeastColumns;
    if (!problem_.is_product() && !is_known) return false;
    if (config_.forced >= 0 || !find_selector(device_, Decides::products)) return false;
    Scores scores = scores_of(product, device_, &program);
    const float separate = std::exchange(scores.front(), kUnknown);
    const auto plan_of = [&](size_t index) { return allowed_with(program, index); };
    choice.fused = most_probable(scores, plan_of);
    if (separate == kUnknown || (!choice.fused.solver && !problem_.is_product())) return false;
    choice.separate = problem_.is_product() ? Decision{solvers().front(), allowed(0)} : alone();
    if (!choice.fused.solver) return true;
    const float difference = separate - scores[index_of(*choice.fused.solver)];
    choice.probability = 1 / (1 + std::exp(double(difference)));
    choice.is_fused = difference <= 0;
    return true;
  }

  // The kernel that computes a matrix product with the program where no selector of products decides.
  Decision of_product(const ProgramCall& program) const {
    if (!problem_.is_product() || problem_.direction == Direction::weight_grad || config_.forced >= 0) return {};
    for (const Solver* solver : product_solvers(problem_)) {
      if (!solver->runs_on(device_)) continue;
      if (PlanPointer plan = allowed_with(program, index_of(*solver))) return {solver, std::move(plan)};
    }
    return {};
  }

  // True if the epilogue selector has chosen between fused and separate. It compares only kernels that the device's
  // kernel selector ranks.
  bool by_selector(const ProgramCall& program, FusionChoice& choice) const {
    if (!choice.fused.solver) return false;
    const size_t separate = index_of(*choice.separate.solver), fused = index_of(*choice.fused.solver);
    if (!is_known(separate) || !is_known(fused)) return false;
    const FusionKernels kernels{choice.fused.solver->name(), choice.separate.solver->name(),
                                scores()[separate] - scores()[fused]};
    choice.features = epilogue_features(problem_, device_, ProgramTraits(program), kernels);
    const auto selector = find_selector(device_, Decides::epilogues);
    if (!selector) return false;
    float logits[kMaxCandidates];
    selector->logits(*choice.features, logits);
    const float difference = logits[selector->candidate_of(kSeparate)] - logits[selector->candidate_of(kFused)];
    if (std::isnan(difference)) return false;  // its weights are damaged
    choice.probability = 1 / (1 + std::exp(double(difference)));
    choice.is_fused = difference <= 0;
    return true;
  }

  void by_estimate(const ProgramCall& program, FusionChoice& choice) const {
    const Decision best = least_estimate(program);
    // Prefer a measured kernel and a separate pass to a kernel that nobody has measured.
    choice.is_fused = best.solver && (choice.fused.solver || !is_known(index_of(*choice.separate.solver)));
    if (!choice.fused.solver) choice.fused = best;
  }

  // The solver's plan; null if it may not be chosen.
  PlanPointer allowed(size_t index) const {
    const Solver& solver = *solvers()[index];
    PlanPointer plan = planned(solver, problem_, device_).plan;
    return plan && !forbidden_because(solver, index, *plan, config_) ? plan : nullptr;
  }

  // The solver's plan that runs the program itself, if it may be chosen; null if it has none.
  PlanPointer fused(const Solver& solver, const ProgramCall& program) const {
    PlanPointer plan = solver.plan_with(program, problem_, device_).plan;
    return plan && plan->workspace_bytes <= config_.workspace_limit ? plan : nullptr;
  }

  // The plan that runs the program itself of a solver that may be chosen; null if there is none.
  PlanPointer allowed_with(const ProgramCall& program, size_t index) const {
    return allowed(index) ? fused(*solvers()[index], program) : PlanPointer();
  }

  // The greatest of these scores among solvers that have a plan; none if there are none.
  template <class PlanOf>
  Decision most_probable(Scores scores, const PlanOf& plan_of) const {
    if (scores.empty()) return {};
    for (;;) {  // rarely more than two iterations
      const auto best = std::max_element(scores.begin(), scores.end());
      if (*best == kUnknown) return {};
      const auto index = size_t(best - scores.begin());
      PlanPointer plan = plan_of(index);
      *best = kUnknown;
      if (!plan) continue;
      if (plan->last_resort && !has_plan(scores, plan_of)) return {};
      return {solvers()[index], std::move(plan)};
    }
  }

  // True if a solver that the selector knows has a plan.
  template <class PlanOf>
  static bool has_plan(const Scores& scores, const PlanOf& plan_of) {
    for (size_t i = 0; i < scores.size(); ++i)
      if (scores[i] != kUnknown && plan_of(i)) return true;
    return false;
  }

  // Scores of the kernels without a program.
  const Scores& scores() const {
    if (!scores_) scores_ = scores_of(problem_, device_, nullptr);
    return *scores_;
  }

  // True if the device's selector ranks the solver of this index.
  bool is_known(size_t index) const { return !scores().empty() && scores()[index] != kUnknown; }

  Decision least_estimate() const {
    Decision best;
    for (size_t i = 0; i < solvers().size(); ++i)
      if (PlanPointer plan = solvers()[i]->estimates() ? allowed(i) : nullptr;
          plan && (!best.solver || plan->us < best.plan->us))
        best = {solvers()[i], std::move(plan)};
    return best;
  }

  // The least estimate among kernels that run the program, if it is less than that of another kernel and a separate
  // pass; else none.
  Decision least_estimate(const ProgramCall& program) const {
    Decision best;
    double least = gpu_unfused_us(problem_);
    for (size_t i = 0; i < solvers().size(); ++i) {
      const PlanPointer apart = solvers()[i]->estimates() ? allowed(i) : nullptr;
      if (!apart || !(apart->us < least)) continue;
      if (PlanPointer plan = fused(*solvers()[i], program)) best = {solvers()[i], std::move(plan)}, least = apart->us;
    }
    return best;
  }

  static constexpr int kLeastColumns = 64;  // of the tiles that the selector of products knows

  const Config config_;
  const ConvProblem& problem_;
  const Device device_;
  mutable std::optional<Scores> scores_;  // set once they are needed
};

// Fills in the probabilities: softmax of the logits of solvers that may be chosen.
void add_probabilities(const ConvProblem& problem, const Device& device, const ProgramCall* program,
                       std::vector<Candidate>& candidates) {
  const Scores scores = scores_of(problem, device, program);
  if (scores.empty()) return;
  const auto known = [&](const Candidate& candidate) {
    return !candidate.reason && scores[candidate.index] != kUnknown;
  };
  double most = kUnknown, sum = 0;
  for (const Candidate& candidate : candidates)
    if (known(candidate)) most = std::max(most, double(scores[candidate.index]));
  for (Candidate& candidate : candidates)
    if (known(candidate)) sum += candidate.probability = std::exp(scores[candidate.index] - most);
  for (Candidate& candidate : candidates)
    if (known(candidate)) candidate.probability /= sum;
}

// A thread's cache of decisions: deciding takes a hundred times as long as a hit.
class Decisions {
 public:
  const Decision& get(const ConvProblem& problem, const Device& device, const ProgramCall* program) {
    forget_if_stale(device);
    const Key key{problem, device.threads, device.tf32, device.deterministic,
                  program ? ProgramKey(*program) : ProgramKey()};
    const uint64_t hash = reformer::hash(problem) ^ (program ? key.program.hash() : 0);
    if (const Decision* known = cache_.find(key, hash)) {
      ++counts.hits;
      return *known;
    }
    ++counts.misses;
    const Choice choice(problem, device);
    return cache_.remember(key, hash, program ? choice.with(*program).chosen() : choice.alone());
  }

  CacheCounts counts{0, 0};

 private:
  struct Key {
    ConvProblem problem;
    int32_t threads = 0;
    bool tf32 = false, deterministic = false;
    ProgramKey program;
    bool operator==(const Key& other) const {
      return threads == other.threads && tf32 == other.tf32 && deterministic == other.deterministic &&
             program == other.program && problem == other.problem;
    }
  };

  // A thread that switches devices starts with an empty cache.
  void forget_if_stale(const Device& device) {
    const uint64_t now = config_epoch();
    if (epoch_ == now && kind_ == device.kind && isa_ == device.isa && gpu_ == device.gpu && arch_ == device.arch)
      return;
    cache_.forget();
    epoch_ = now;
    kind_ = device.kind;
    isa_ = device.isa;
    arch_ = device.arch;
    gpu_ = device.gpu;
  }

  SetCache<Key, Decision> cache_;
  uint64_t epoch_ = 0;
  DeviceKind kind_ = DeviceKind::cpu;
  Isa isa_ = Isa::plain;
  std::string arch_;
  const GpuSpec* gpu_ = nullptr;
};

thread_local Decisions decisions;

}  // namespace

std::vector<Candidate> candidates(const ConvProblem& problem, const Device& of, const Config& config,
                                  const ProgramCall* program) {
  const Device device = as_configured(of, config);
  std::vector<Candidate> result;
  for (size_t i = 0; i < solvers().size(); ++i) {
    const Solver& solver = *solvers()[i];
    if (!solver.runs_on(device)) continue;
    Candidate& candidate = result.emplace_back(Candidate{i, &solver});
    const Planned<ConvPlan> found = planned(solver, problem, device);
    candidate.reason = found.plan ? forbidden_because(solver, i, *found.plan, config) : found.reason;
    if (!found.plan) continue;
    candidate.estimate_us = found.plan->us;
    candidate.workspace_bytes = found.plan->workspace_bytes;
    candidate.condition = found.plan->condition;
    if (program && i > 0 && !candidate.reason) candidate.reason = solver.plan_with(*program, problem, device).reason;
  }
  add_probabilities(problem, device, program, result);
  return result;
}

FusionChoice choose_fusion(const ConvProblem& problem, const Device& device, const ProgramCall& program) {
  return Choice(problem, device).with(program);
}

// Only GPU kernels run programs themselves.
const Decision& decide(const ConvProblem& problem, const Device& device, const ProgramCall* program) {
  return decisions.get(problem, device, device.kind == DeviceKind::cpu ? nullptr : program);
}

CacheCounts decision_cache_counts() { return decisions.counts; }

}  // namespace reformer
