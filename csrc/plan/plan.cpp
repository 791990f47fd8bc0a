#include "plan.h"

#include <algorithm>

#include "interned.h"
#include "program/code_reader.h"

namespace reformer {
namespace {

constexpr int64_t kMost = 1 << 16;            // tensors; more than any graph has
constexpr int64_t kMostElements = 1LL << 56;  // far more than any memory has; sums of a few don't overflow
constexpr int64_t kMostDimensions = 64;       // PyTorch's limit

int64_t read_count(CodeReader& reader) { return reader.next(0, kMost, "a count"); }

// Reads a count, then as many numbers of tensors, each below `end`.
std::vector<int32_t> read_tensors(CodeReader& reader, int64_t end) {
  std::vector<int32_t> numbers;
  for (int64_t left = read_count(reader); left > 0; --left)
    numbers.push_back(int32_t(reader.next(0, end - 1, "a tensor that is not there")));
  return numbers;
}

// Reads a count, then as many bytes.
std::string read_text(CodeReader& reader) {
  std::string text;
  for (int64_t left = read_count(reader); left > 0; --left) text += char(reader.next(0, 255, "a byte"));
  return text;
}

int64_t read_geometry(CodeReader& reader) {
  const int64_t geometry = reader.next();
  unpacked_geometry(geometry);
  return geometry;
}

std::shared_ptr<const InternedProgram> read_program(CodeReader& reader) {
  const int64_t length = reader.left();
  return interned_program(reader.next_numbers(length), length);
}

ViewStep read_view(CodeReader& reader) {
  ViewStep view;
  view.offset = reader.next(-kMostElements, kMostElements, "an offset");
  const int64_t dimensions = reader.next(0, kMostDimensions, "a count");
  for (int64_t d = 0; d < dimensions; ++d) view.sizes.push_back(reader.next(0, kMostElements, "a size"));
  for (int64_t d = 0; d < dimensions; ++d) view.strides.push_back(reader.next(0, kMostElements, "a stride"));
  view.end = view.offset;
  if (std::count(view.sizes.begin(), view.sizes.end(), 0)) return view;
  ++view.end;
  for (int64_t d = 0; d < dimensions; ++d) {
    int64_t reach;
    if (__builtin_mul_overflow(view.sizes[d] - 1, view.strides[d], &reach) || reach > kMostElements)
      reader.malformed("a view of more memory than there is");
    view.end += reach;
  }
  return view;
}

// A step's kind and its numbers of inputs and results. The reader holds nothing after them.
struct Read {
  decltype(PlanStep::what) what;
  int64_t inputs, results;
};
Read read_what(int64_t kind, CodeReader& reader) {
  switch (kind) {
    case 0: {
      const int64_t geometry = read_geometry(reader);
      Conv2dStep step{geometry, read_program(reader)};
      const Program& program = step.program->whole;
      const int64_t inputs = int64_t(program.inputs.size()) + 2, results = int64_t(program.outputs.size());
      return {std::move(step), inputs, results};
    }
    case 1: {
      StitchStep step{read_program(reader)};
      const Program& program = step.program->whole;
      const int64_t inputs = int64_t(program.inputs.size()) + 1, results = int64_t(program.outputs.size());
      return {std::move(step), inputs, results};
    }
    case 2: {
      const int64_t geometry = read_geometry(reader);
      const int64_t wanted = reader.next(0, 3, "gradients that there are not");
      return {Conv2dGradsStep{geometry, wanted}, 3, (wanted & 1) + (wanted >> 1)};
    }
    case 3: return {PartsStep{}, 1, read_count(reader)};
    case 4: return {read_view(reader), 1, 1};
    case 5: {
      OperatorStep call = OperatorStep::of(reader.next());
      const int64_t inputs = read_count(reader), results = read_count(reader);
      return {std::move(call), inputs, results};
    }
    default: reader.malformed("an unknown step");
  }
}

PlanStep read_step(CodeReader& reader, int32_t there) {
  const int64_t kind = reader.next(), length = reader.next();
  CodeReader own("plan", reader.next_numbers(length), length);
  Read read = read_what(kind, own);
  if (!own.done()) reader.malformed("a step is longer than what it says");
  PlanStep step{std::move(read.what), {}, {}, {}, int32_t(read.results), {}};
  step.inputs = read_tensors(reader, there);
  step.into = read_tensors(reader, there);
  step.frees = read_tensors(reader, there + read.results);
  step.title = read_text(reader);
  if (int64_t(step.inputs.size()) != read.inputs) reader.malformed("a step has another number of inputs");
  const bool writes = std::holds_alternative<StitchStep>(step.what);
  if (int64_t(step.into.size()) > (writes ? read.results : 0)) reader.malformed("what a step writes to");
  return step;
}

// The distinct operations of a program in order, and its reductions, e.g. "sub, exp, sum of channels".
std::string operations_of(const Program& program) {
  constexpr size_t kMostShown = 8;
  constexpr const char* reductions[] = {"", "sum", "max", "moments"};
  constexpr const char* of[] = {"elements", "channels", "rows", "planes", "all"};
  std::vector<std::string> found;
  const auto add = [&](std::string word) {
    if (std::find(found.begin(), found.end(), word) == found.end()) found.push_back(std::move(word));
  };
  for (const ProgramNode& node : program.nodes)
    if (operands(node.op)) add(kProgramOps[int(node.op)].name);
  for (const ProgramOutput& output : program.outputs)
    if (output.kind != Reduction::none) add(std::string(reductions[int(output.kind)]) + " of " + of[int(output.per)]);
  std::string text;
  for (size_t i = 0; i < std::min(found.size(), kMostShown); ++i) text += (i ? ", " : "") + found[i];
  if (found.size() > kMostShown) text += ", and " + std::to_string(found.size() - kMostShown) + " more";
  return text.empty() ? "copy" : text;
}

// Throws if a tensor is used after the step that frees it.
void check_frees(const Plan& plan, const CodeReader& reader) {
  std::vector<bool> freed(size_t(plan.tensors));
  const auto check = [&](const std::vector<int32_t>& used) {
    for (int32_t tensor : used)
      if (freed[size_t(tensor)]) reader.malformed("a tensor that was freed");
  };
  for (const PlanStep& step : plan.steps) {
    check(step.inputs);
    check(step.into);
    for (int32_t tensor : step.frees) {
      if (freed[size_t(tensor)]) reader.malformed("a tensor that was freed");
      freed[size_t(tensor)] = true;
    }
  }
  check(plan.outputs);
}

}  // namespace

const char* PlanStep::name() const {
  if (const auto* call = std::get_if<OperatorStep>(&what)) return call->name();
  constexpr const char* names[] = {"conv2d", "stitch", "conv2d_grads", "parts", "view"};
  return names[what.index()];
}

std::string PlanStep::label() const {
  if (!title.empty()) return "reformer::" + title;
  const auto with_prefix = [&](const std::string& rest) { return std::string("reformer::") + name() + ": " + rest; };
  if (const auto* conv = std::get_if<Conv2dStep>(&what)) return with_prefix(operations_of(conv->program->whole));
  if (const auto* stitch = std::get_if<StitchStep>(&what)) return with_prefix(operations_of(stitch->program->whole));
  if (const auto* grads = std::get_if<Conv2dGradsStep>(&what)) {
    constexpr const char* wanted[] = {"none", "input", "weight", "input, weight"};
    return with_prefix(wanted[grads->wanted]);
  }
  return "";
}

Plan Plan::decode(const int64_t* code, int64_t size) {
  CodeReader reader("plan", code, size);
  Plan plan{};
  plan.inputs = plan.tensors = int32_t(read_count(reader));
  plan.outputs = read_tensors(reader, kMost);
  while (!reader.done()) {
    try {
      plan.steps.push_back(read_step(reader, plan.tensors));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string(error.what()) + " (step " + std::to_string(plan.steps.size()) + ")");
    }
    const PlanStep& step = plan.steps.back();
    plan.tensors += step.results;
    if (const auto* stitch = std::get_if<StitchStep>(&step.what))
      plan.reducing += !stitch->program->whole.reductions.empty();
    if (plan.tensors > kMost) reader.malformed("a count");
  }
  for (int32_t output : plan.outputs)
    if (output >= plan.tensors) reader.malformed("a tensor that is not there");
  check_frees(plan, reader);
  return plan;
}

}  // namespace reformer
