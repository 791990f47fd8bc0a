// Selectors: their features, which of them are in force, and their logits.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "c_api_common.h"
#include "dispatch/decide.h"
#include "dispatch/selectors.h"
#include "dispatch/solver_list.h"
#include "plan/interned.h"

using namespace reformer;
using namespace reformer::c_api;

namespace {

std::shared_ptr<const Selector> selector_of(const Device& device) {
  auto selector = find_selector(device);
  if (!selector) throw std::invalid_argument("there is no selector for " + device.str() + ": the static rule chooses");
  return selector;
}

Decides decides_of(int32_t number) {
  if (number < 0 || number >= kDecisions)
    throw std::invalid_argument("selectors decide about kernels (0), epilogues (1) or products (2)");
  return Decides(number);
}

std::shared_ptr<const Selector> selector_from(const ReformerSelector& s) {
  if (s.feature_version != kFeatureVersion)
    throw std::invalid_argument("the selector for " + std::string(s.arch) + " was trained on version " +
                                std::to_string(s.feature_version) + " of the features, and this is version " +
                                std::to_string(kFeatureVersion) +
                                ": train it anew with `python -m torch_reformer train` of this installation");
  const Decides decides = decides_of(s.decides);
  std::vector<std::string> names;
  if (decides != Decides::epilogues)
    for (const Solver* solver : solvers()) names.push_back(solver->name());
  else
    names.assign(std::begin(kEpilogueWays), std::end(kEpilogueWays));
  auto selector =
      std::make_shared<Selector>(decides, SelectorShape{s.rows, s.width, s.hidden, s.blocks},
                                 std::vector<std::string>(s.names, s.names + s.candidates), names, s.tensors);
  for (size_t way = 0; decides == Decides::epilogues && way < names.size(); ++way)
    if (selector->candidate_of(way) < 0)
      throw std::invalid_argument("a selector of epilogues must know the way \"" + names[way] + "\"");
  return selector;
}

void copy(const Features& features, int32_t*& rows, float*& weights) {
  for (const auto& token : features.tokens)
    for (const Features::Term& term : token) {
      *rows++ = term.row;
      *weights++ = term.weight;
    }
}

}  // namespace

int32_t reformer_epilogue(const ConvProblem* problem, const char* device, const int64_t* code, int64_t size,
                          ReformerEpilogue* epilogue, int32_t* rows, float* weights) {
  return guarded(-1, [&] {
    if (!size) throw std::invalid_argument("there is no program");
    problem->check();
    with_program(*problem, code, size, [&](const ProgramCall* call) {
      const FusionChoice found = choose_fusion(*problem, device_of(device), *call);
      *epilogue = {index_of(found.separate), found.fused.solver ? index_of(found.fused) : -1, found.is_fused,
                   found.features.has_value(), found.probability};
      if (found.features) copy(*found.features, rows, weights);
    });
    return 0;
  });
}

void reformer_feature_shape(int32_t decides, int32_t shape[4]) {
  const int32_t values[] = {kFeatureVersion, kTokens, kTerms, feature_rows(Decides(decides))};
  std::copy(std::begin(values), std::end(values), shape);
}

int32_t reformer_features(const ConvProblem* problems, int64_t count, const char* device_text, int32_t* rows,
                          float* weights) {
  return guarded(-1, [&] {
    const Device device = device_of(device_text);
    for (const ConvProblem* problem = problems; problem < problems + count; ++problem) {
      problem->check();
      copy(features(*problem, device), rows, weights);
    }
    return 0;
  });
}

int32_t reformer_product_features(const ConvProblem* problem, const char* device, const int64_t* code, int64_t size,
                                  int32_t* rows, float* weights) {
  return guarded(-1, [&] {
    problem->check();
    if (!problem->is_product()) throw std::invalid_argument(problem->str() + " is no matrix product");
    with_program(*problem, code, size, [&](const ProgramCall* call) {
      const ProgramTraits traits = call ? ProgramTraits(*call) : ProgramTraits();
      copy(product_features(*problem, device_of(device), traits), rows, weights);
    });
    return 0;
  });
}

int32_t reformer_selector_check(const ReformerSelector* s) {
  return guarded(-1, [&] {
    selector_from(*s);
    return 0;
  });
}

int32_t reformer_selector_set(const ReformerSelector* s) {
  return guarded(-1, [&] {
    set_selector(s->arch, decides_of(s->decides), selector_from(*s));
    return 0;
  });
}

int32_t reformer_selector_remove(const char* arch, int32_t decides) {
  return guarded(-1, [&] {
    set_selector(arch, decides_of(decides), nullptr);
    return 0;
  });
}

int32_t reformer_selector_candidates(const char* device) {
  return guarded(-1, [&] { return static_cast<int32_t>(selector_of(device_of(device))->candidates().size()); });
}

int32_t reformer_selector_logits(const ConvProblem* problems, int64_t count, const char* device_text, int32_t isa,
                                 float* logits) {
  return guarded(-1, [&] {
    const Device device = device_of(device_text);
    const auto selector = selector_of(device);
    const Isa chosen = isa_of(isa);
    for (int64_t i = 0; i < count; ++i, logits += selector->candidates().size()) {
      problems[i].check();
      selector->logits(features(problems[i], device), logits, chosen);
    }
    return 0;
  });
}
