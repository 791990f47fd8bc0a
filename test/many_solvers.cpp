// The choice among 100 solvers, of which solver_99 is the best by estimate and solver_98 by the weights: csrc/dispatch
// with another list of solvers.
#include <cstdio>
#include <string>

#include "dispatch/decide.h"
#include "dispatch/selectors.h"
#include "dispatch/solver_list.h"
#include "selector/features.h"

using namespace reformer;

namespace {

constexpr size_t kSolvers = 100;

class Numbered final : public Solver {
 public:
  explicit Numbered(size_t number) : number_(number), name_("solver_" + std::to_string(number)) {}
  const char* name() const override { return name_.c_str(); }
  Planned<ConvPlan> plan(const ConvProblem&, const Device&) const override {
    ConvPlan plan;
    plan.us = double(kSolvers - number_);
    return plan;
  }

 private:
  const size_t number_;
  const std::string name_;
};

// Which knows all solvers.
void set_weights() {
  constexpr int32_t width = 16, hidden = 16, blocks = 1;
  const std::vector<float> zeros(size_t(feature_rows()) * width + kSolvers * width + 3 * width * hidden);
  const std::vector<const float*> tensors(size_t(selector_tensors(blocks)), zeros.data());
  std::vector<std::string> names;
  for (const Solver* solver : solvers()) names.push_back(solver->name());
  set_selector("cpu", Decides::kernels,
               std::make_shared<Selector>(Decides::kernels, SelectorShape{feature_rows(), width, hidden, blocks}, names,
                                          names, tensors.data()));
}

int failures = 0;
void expect(size_t number) {
  const Solver& found = *decide(ConvProblem{}, Device::cpu(1)).solver;
  if (&found == solvers()[number]) return;
  std::printf("solver_%zu is wanted, and %s chosen\n", number, found.name());
  ++failures;
}

void forbid(std::initializer_list<size_t> numbers) {
  Config config{{}, -1, kDefaultWorkspaceLimit};
  config.forbidden.resize(kSolvers);
  for (size_t number : numbers) config.forbidden[number] = true;
  set_config(config);
}

}  // namespace

namespace reformer {
// The weights' word, whatever they are.
void infer(const PackedSelector&, const Features&, Isa, float* logits) {
  for (size_t i = 0; i < kSolvers; ++i) logits[i] = i == 98;
}
const std::vector<const Solver*>& solvers() {
  static const auto list = [] {
    std::vector<const Solver*> made;
    for (size_t i = 0; i < kSolvers; ++i) made.push_back(new Numbered(i));
    return made;
  }();
  return list;
}

const Solver* find_solver(std::string_view name) {
  for (const Solver* solver : solvers())
    if (name == solver->name()) return solver;
  return nullptr;
}
namespace gpu {
const char* unavailable(const std::string&) { return "there is none"; }
}  // namespace gpu
}  // namespace reformer

int main() {
  expect(99);
  forbid({99});
  expect(98);
  forbid({99, 98, 35});
  expect(97);
  forbid({});
  set_weights();
  expect(98);
  forbid({98});
  expect(0);  // equal logits: the first
  return failures;
}
