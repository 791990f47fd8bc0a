#include "c_api.h"

#include <algorithm>
#include <exception>
#include <string>

#include "cpu/cost.h"
#include "cpu/parallel.h"
#include "cpu/selector/features.h"
#include "decide.h"

namespace {

using namespace reformer;

thread_local std::string text;
thread_local std::string error;

const char* keep(std::string value) {
  text = std::move(value);
  return text.c_str();
}

// Turns an exception into `failed` and the error sentence.
template <class Result, class Body>
Result guarded(Result failed, const Body& body) {
  try {
    return body();
  } catch (const std::exception& exception) {
    error = exception.what();
    return failed;
  }
}

Device device_of(const char* device) { return device ? Device::parse(device) : Device::cpu(max_threads()); }

}  // namespace

const char* reformer_error() { return error.c_str(); }

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

const char* reformer_problem_kind(const ConvProblem* problem) { return name(problem->kind()); }

const char* reformer_device(const char* device) {
  return guarded<const char*>(nullptr, [&] { return keep(device_of(device).str()); });
}

int32_t reformer_solver_count() { return static_cast<int32_t>(solvers().size()); }

const char* reformer_solver_name(int32_t index) { return solvers()[size_t(index)]->name(); }

int32_t reformer_decide(const ConvProblem* problem, const char* device) {
  return guarded(-1, [&] {
    const Solver* choice = &decide(*problem, device_of(device));
    const auto found = std::find(solvers().begin(), solvers().end(), choice);
    return static_cast<int32_t>(found - solvers().begin());
  });
}

int32_t reformer_candidates(const ConvProblem* problem, const char* device_text, ReformerCandidate* result) {
  return guarded(-1, [&] {
    problem->check();
    for (const Candidate& candidate : candidates(*problem, device_of(device_text), config()))
      *result++ = {candidate.solver->name(), candidate.refusal, candidate.estimate_us, candidate.workspace_bytes};
    return reformer_decide(problem, device_text);
  });
}

int32_t reformer_cost_class(const ConvProblem* problem) { return cost_class(*problem); }

int32_t reformer_cost_terms(const ConvProblem* problem, const char* device, double* terms) {
  return guarded(-1, [&] {
    const CostTerms found = cost_terms(*problem, device_of(device));
    terms[0] = found.flop_us;
    terms[1] = found.bytes_us;
    terms[2] = 1;
    return 0;
  });
}

void reformer_feature_shape(int32_t shape[4]) {
  const int32_t values[] = {kFeatureVersion, kTokens, kTerms, feature_rows()};
  std::copy(std::begin(values), std::end(values), shape);
}

int32_t reformer_features(const ConvProblem* problem, const char* device, int32_t* rows, float* weights) {
  return guarded(-1, [&] {
    for (const auto& token : features(*problem, device_of(device)).tokens)
      for (const Features::Term& term : token) {
        *rows++ = term.row;
        *weights++ = term.weight;
      }
    return 0;
  });
}

int32_t reformer_set_config(const ReformerConfig* c) {
  return guarded(-1, [&] {
    set_config(
        {c->forbidden, c->forced, c->workspace_limit, c->deterministic_only != 0, c->allow_reduced_accuracy != 0});
    return 0;
  });
}

void reformer_cache_counts(int64_t* hits, int64_t* misses) {
  const CacheCounts counts = decision_cache_counts();
  *hits = counts.hits;
  *misses = counts.misses;
}
