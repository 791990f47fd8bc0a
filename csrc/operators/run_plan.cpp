#include "run_plan.h"

#include "checks.h"
#include "plan/interned.h"
#include "program.h"

namespace reformer {
namespace {

std::vector<Tensor> run(const PlanStep& step, const std::vector<Tensor>& there) {
  using Kind = PlanStep::Kind;
  const auto input = [&](size_t i) -> const Tensor& { return there[size_t(step.inputs[i])]; };
  const auto from = [&](size_t first) {
    std::vector<Tensor> some;
    for (size_t i = first; i < step.inputs.size(); ++i) some.push_back(input(i));
    return some;
  };
  switch (step.kind) {
    case Kind::conv2d: return conv2d_epilogue_interned(input(0), input(1), from(2), *step.program, step.geometry);
    case Kind::conv2d_grads: return conv2d_grads(input(0), input(1), input(2), step.geometry, step.wanted);
    case Kind::stitch: {
      std::vector<Tensor> into;
      for (int32_t i : step.into) into.push_back(there[size_t(i)]);
      return stitch_interned(input(0), from(1), *step.program, into);
    }
    default: break;
  }
  const Tensor& whole = input(0);
  if (whole.dim() < 1 || whole.size(0) < step.results) fail("_run", "there are not so many parts");
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < step.results; ++i) parts.push_back(part(whole, i));
  return parts;
}

std::shared_ptr<const Plan> plan_of(int64_t number) {
  try {
    return interned_plan(number);
  } catch (const std::invalid_argument& error) {
    fail("_run", error.what());
  }
}

}  // namespace

std::vector<Tensor> run_plan(const std::vector<Tensor>& tensors, int64_t number) {
  const std::shared_ptr<const Plan> held = plan_of(number);
  const Plan& plan = *held;
  if (tensors.size() != size_t(plan.inputs))
    fail("_run", "the plan takes ", plan.inputs, " tensors, got ", tensors.size());
  std::vector<Tensor> there = tensors;
  for (const PlanStep& step : plan.steps) {
    std::vector<Tensor> made = run(step, there);
    there.insert(there.end(), made.begin(), made.end());
  }
  std::vector<Tensor> outputs;
  for (int32_t i : plan.outputs) outputs.push_back(there[size_t(i)]);
  return outputs;
}

}  // namespace reformer
