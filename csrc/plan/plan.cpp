#include "plan.h"

#include "interned.h"
#include "program/code_reader.h"

namespace reformer {
namespace {

constexpr int64_t kMost = 1 << 12;  // tensors, far more than anybody gives

int64_t read_count(CodeReader& reader) { return reader.next(0, kMost, "a count"); }

// As many numbers of tensors as the first number says, each below `end`.
std::vector<int32_t> read_tensors(CodeReader& reader, int64_t end) {
  std::vector<int32_t> numbers;
  for (int64_t left = read_count(reader); left > 0; --left)
    numbers.push_back(int32_t(reader.next(0, end - 1, "a tensor that is not there")));
  return numbers;
}

PlanStep read_step(CodeReader& reader, int32_t there) {
  using Kind = PlanStep::Kind;
  PlanStep step{};
  const int64_t kind = reader.next();
  if (kind < 0 || kind > int64_t(Kind::parts)) reader.malformed("an unknown step");
  step.kind = Kind(kind);
  const bool has_program = step.kind == Kind::conv2d || step.kind == Kind::stitch;
  const int64_t what = reader.next();
  if (has_program) step.program = interned_program(reader.next_numbers(what), what);
  step.geometry = reader.next();
  step.inputs = read_tensors(reader, there);
  step.into = read_tensors(reader, there);
  size_t operands = 0;
  switch (step.kind) {
    case Kind::conv2d:
    case Kind::stitch:
      step.results = int32_t(step.program->whole.outputs.size());
      operands = step.program->whole.inputs.size() + (step.kind == Kind::conv2d ? 2 : 1);
      break;
    case Kind::conv2d_grads:
      if (what < 0 || what > 3) reader.malformed("gradients that there are not");
      step.wanted = what;
      step.results = int32_t((what & 1) + (what >> 1));
      operands = 3;
      break;
    case Kind::parts:
      if (what < 0 || what > kMost) reader.malformed("a count");
      step.results = int32_t(what);
      operands = 1;
  }
  if (step.kind == Kind::conv2d || step.kind == Kind::conv2d_grads) unpacked_geometry(step.geometry);
  if (step.inputs.size() != operands) reader.malformed("a step has another number of inputs");
  if (step.into.size() > size_t(step.results) || (!step.into.empty() && step.kind != Kind::stitch))
    reader.malformed("what a step writes to");
  return step;
}

}  // namespace

Plan Plan::decode(const int64_t* code, int64_t size) {
  CodeReader reader("plan", code, size);
  Plan plan;
  plan.inputs = int32_t(read_count(reader));
  int32_t there = plan.inputs;
  const std::vector<int32_t> outputs = read_tensors(reader, kMost);
  while (!reader.done()) {
    plan.steps.push_back(read_step(reader, there));
    there += plan.steps.back().results;
  }
  for (int32_t output : outputs)
    if (output >= there) reader.malformed("a tensor that is not there");
  plan.outputs = outputs;
  return plan;
}

}  // namespace reformer
