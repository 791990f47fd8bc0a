#include "sequence_operator.h"

#include "checks.h"
#include "epilogue_operators.h"

namespace reformer {
namespace {

std::vector<Tensor> run(const SequenceStep& step, const std::vector<Tensor>& there) {
  using Kind = SequenceStep::Kind;
  const auto input = [&](size_t i) -> const Tensor& { return there[size_t(step.inputs[i])]; };
  const auto from = [&](size_t first) {
    std::vector<Tensor> some;
    for (size_t i = first; i < step.inputs.size(); ++i) some.push_back(input(i));
    return some;
  };
  switch (step.kind) {
    case Kind::conv2d: return conv2d_epilogue_kept(input(0), input(1), from(2), *step.program, step.geometry);
    case Kind::conv2d_grads: return conv2d_grads(input(0), input(1), input(2), step.geometry, step.wanted);
    case Kind::stitch: {
      std::vector<Tensor> into;
      for (int32_t i : step.into) into.push_back(there[size_t(i)]);
      return stitch_kept(input(0), from(1), *step.program, into);
    }
    default: break;
  }
  const Tensor& whole = input(0);
  if (whole.dim() < 1 || whole.size(0) < step.results) fail("_run", "there are not so many parts");
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < step.results; ++i) parts.push_back(part(whole, i));
  return parts;
}

const Sequence& sequence_of(int64_t number) {
  try {
    return kept_sequence(number);
  } catch (const std::invalid_argument& error) {
    fail("_run", error.what());
  }
}

}  // namespace

std::vector<Tensor> run_sequence(const std::vector<Tensor>& tensors, int64_t number) {
  const Sequence& sequence = sequence_of(number);
  if (tensors.size() != size_t(sequence.inputs))
    fail("_run", "the sequence takes ", sequence.inputs, " tensors, got ", tensors.size());
  std::vector<Tensor> there = tensors;
  for (const SequenceStep& step : sequence.steps) {
    std::vector<Tensor> made = run(step, there);
    there.insert(there.end(), made.begin(), made.end());
  }
  std::vector<Tensor> outputs;
  for (int32_t i : sequence.outputs) outputs.push_back(there[size_t(i)]);
  return outputs;
}

}  // namespace reformer
