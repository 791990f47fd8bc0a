// Problems, the choice among solvers, and the settings it depends on.
#include "c_api.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "c_api_common.h"
#include "cpu/cost.h"
#include "cpu/parallel.h"
#include "dispatch/decide.h"
#include "dispatch/pytorch_settings.h"
#include "dispatch/solver_list.h"
#include "jit/gpu.h"
#include "plan/interned.h"

using namespace reformer;
using namespace reformer::c_api;

int32_t reformer_problem_parse(const char* key, ConvProblem* problem) {
  return guarded(-1, [&] {
    *problem = ConvProblem::parse(key);
    return 0;
  });
}

const char* reformer_problem_str(const ConvProblem* problem) {
  return guarded<const char*>(nullptr, [&] {
    problem->check();
    return keep(problem->str());
  });
}

const char* reformer_problem_kind(const ConvProblem* problem) {
  return guarded<const char*>(nullptr, [&] {
    problem->check();
    return name(problem->kind());
  });
}

const char* reformer_device(const char* device) {
  return guarded<const char*>(nullptr, [&] { return keep(device_of(device).str()); });
}

int32_t reformer_solver_count() { return static_cast<int32_t>(solvers().size()); }

const char* reformer_solver_name(int32_t index) {
  return guarded<const char*>(nullptr, [&] { return solvers().at(size_t(index))->name(); });
}

int32_t reformer_decide(const ConvProblem* problem, const char* device) {
  return guarded(-1, [&] {
    problem->check();
    return index_of(decide(*problem, device_of(device)));
  });
}

int32_t reformer_decide_all(const ConvProblem* problems, int64_t count, const char* device_text, int32_t* choices) {
  return guarded(-1, [&] {
    const Device device = device_of(device_text);
    for (int64_t i = 0; i < count; ++i) {
      problems[i].check();
      choices[i] = index_of(decide(problems[i], device));
    }
    return 0;
  });
}

int32_t reformer_candidates(const ConvProblem* problem, const char* device_text, const int64_t* code, int64_t size,
                            ReformerCandidate* result, int32_t* count) {
  return guarded(-1, [&] {
    problem->check();
    int32_t choice = -1;
    with_program(*problem, code, size, [&](const ProgramCall* program) {
      const Device device = device_of(device_text);
      const auto found = candidates(*problem, device, config(), program);
      *count = static_cast<int32_t>(found.size());
      for (const Candidate& candidate : found)
        *result++ = {candidate.solver->name(), candidate.reason,      candidate.estimate_us, candidate.workspace_bytes,
                     int32_t(candidate.index), candidate.probability, candidate.condition};
      choice = index_of(decide(*problem, device, program));
    });
    return choice;
  });
}

int32_t reformer_conv_plan(const ConvProblem* problem, int32_t index, ReformerConvPlan* found) {
  return guarded(-1, [&] {
    // One for each thread: copying a GPU's name would allocate a string.
    thread_local Device device;
    thread_local int32_t device_index = -2;
    if (index != device_index) {
      device = index < 0 ? Device::cpu(max_threads()) : gpu::device(index);
      device_index = index;
    }
    if (index < 0) device.threads = max_threads();
    device.tf32 = problem->dtype == DType::fp32 && allows_tf32(device);
    device.deterministic = asks_for_determinism(device);
    const ConvPlan* const plan = decide(*problem, device).plan.get();
    *found = {plan, plan->workspace_bytes, plan->aten ? int32_t(*plan->aten) : -1, plan->leaves_bias};
    return 0;
  });
}

int32_t reformer_cost_class(const ConvProblem* problem) {
  return guarded(-1, [&] {
    problem->check();
    return cost_class(*problem);
  });
}

int32_t reformer_cost_terms(const ConvProblem* problem, const char* device, double* terms) {
  return guarded(-1, [&] {
    problem->check();
    const CostTerms found = cost_terms(*problem, device_of(device));
    terms[0] = found.flop_us;
    terms[1] = found.bytes_us;
    terms[2] = 1;
    return 0;
  });
}

int32_t reformer_set_config(const ReformerConfig* c) {
  return guarded(-1, [&] {
    if (c->epilogues < 0 || c->epilogues > int32_t(Epilogues::separate))
      throw std::invalid_argument("epilogues are chosen (0), fused (1) or separate (2)");
    std::vector<bool> forbidden(solvers().size());
    for (int32_t i = 0; i < c->forbidden_count; ++i) forbidden.at(size_t(c->forbidden[i])) = true;
    set_config({std::move(forbidden), c->forced, c->workspace_limit, c->deterministic_only != 0,
                c->allow_reduced_accuracy != 0, Epilogues(c->epilogues)});
    return 0;
  });
}

void reformer_set_tf32_reader(SettingReader reader) { set_tf32_reader(reader); }
void reformer_set_deterministic_reader(SettingReader reader) { set_deterministic_reader(reader); }

int32_t reformer_allows_tf32(const char* device) {
  return guarded(-1, [&] { return int32_t(device_of(device).tf32); });
}

void reformer_cache_counts(int64_t* hits, int64_t* misses) {
  const CacheCounts counts = decision_cache_counts();
  *hits = counts.hits;
  *misses = counts.misses;
}

int32_t reformer_run(const ConvProblem* problem, const char* device_text, int32_t solver, void* x, void* w, void* y,
                     const void* bias, gpu::Launcher launcher) {
  return guarded(-1, [&] {
    problem->check();
    const Device device = device_of(device_text);
    const Solver& chosen = *solvers().at(size_t(solver));
    if (!chosen.runs_on(device)) throw std::invalid_argument("the solver does not run on such a device");
    const Planned<ConvPlan> planned = chosen.plan(*problem, device);
    if (!planned.plan) throw std::invalid_argument(planned.reason);
    if (!planned.plan->run) throw std::invalid_argument("PyTorch's own convolution takes tensors");
    // NaN, so that a read of unwritten memory shows.
    std::vector<char> workspace(size_t(planned.plan->workspace_bytes) + 64, '\xff');
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    planned.plan->run({x, w, y, bias, reinterpret_cast<void*>((address + 63) / 64 * 64), {0, nullptr, launcher}});
    return 0;
  });
}

int32_t reformer_operation_count() { return kProgramOpCount; }
const char* reformer_operation_name(int32_t number) { return kProgramOps[number].name; }
int32_t reformer_operation_operands(int32_t number) { return kProgramOps[number].operands; }

int64_t reformer_intern_plan(const int64_t* code, int64_t size) {
  return guarded<int64_t>(-1, [&] { return intern_plan(code, size); });
}

void reformer_release_plan(int64_t number) { release_plan(number); }

void reformer_interned_counts(int64_t* programs, int64_t* plans) {
  const InternedCounts counts = interned_counts();
  *programs = counts.programs;
  *plans = counts.plans;
}
