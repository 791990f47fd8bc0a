#include "sequence.h"

#include <stdexcept>

#include "kept.h"

namespace reformer {
namespace {

[[noreturn]] void malformed(const char* what) {
  throw std::invalid_argument(std::string("the sequence is malformed: ") + what);
}

class Reader {
 public:
  Reader(const int64_t* code, int64_t size) : at_(code), end_(code + size) {}
  bool done() const { return at_ == end_; }
  int64_t next() {
    if (done()) malformed("it ends early");
    return *at_++;
  }
  // As many numbers of tensors as the first number says, each below `end`.
  std::vector<int32_t> tensors(int32_t end) {
    std::vector<int32_t> numbers;
    for (int64_t left = count(); left > 0; --left) {
      const int64_t number = next();
      if (number < 0 || number >= end) malformed("a tensor that is not there");
      numbers.push_back(int32_t(number));
    }
    return numbers;
  }
  int64_t count() {
    const int64_t count = next();
    if (count < 0 || count > 1 << 12) malformed("a count");
    return count;
  }

 private:
  const int64_t *at_, *const end_;
};

SequenceStep read_step(Reader& reader, int32_t there) {
  using Kind = SequenceStep::Kind;
  SequenceStep step{};
  const int64_t kind = reader.next();
  if (kind < 0 || kind > int64_t(Kind::parts)) malformed("an unknown step");
  step.kind = Kind(kind);
  const int64_t what = reader.next();
  step.geometry = reader.next();
  step.inputs = reader.tensors(there);
  step.into = reader.tensors(there);
  size_t operands = 0;
  switch (step.kind) {
    case Kind::conv2d:
    case Kind::stitch:
      step.program = &kept_program(what);
      step.results = int32_t(step.program->whole.outputs.size());
      operands = step.program->whole.inputs.size() + (step.kind == Kind::conv2d ? 2 : 1);
      break;
    case Kind::conv2d_grads:
      if (what < 0 || what > 7) malformed("gradients that there are not");
      step.wanted = what;
      step.results = int32_t((what & 1) + (what >> 1 & 1) + (what >> 2 & 1));
      operands = 3;
      break;
    case Kind::parts:
      if (what < 0 || what > 1 << 12) malformed("a count");
      step.results = int32_t(what);
      operands = 1;
  }
  if (step.kind == Kind::conv2d || step.kind == Kind::conv2d_grads) kept_geometry(step.geometry);
  if (step.inputs.size() != operands) malformed("a step has another number of inputs");
  if (step.into.size() > size_t(step.results) || (!step.into.empty() && step.kind != Kind::stitch))
    malformed("what a step writes to");
  return step;
}

}  // namespace

Sequence Sequence::decode(const int64_t* code, int64_t size) {
  Reader reader(code, size);
  Sequence sequence;
  sequence.inputs = int32_t(reader.count());
  int32_t there = sequence.inputs;
  const std::vector<int32_t> outputs = reader.tensors(1 << 12);
  while (!reader.done()) {
    sequence.steps.push_back(read_step(reader, there));
    there += sequence.steps.back().results;
  }
  for (int32_t output : outputs)
    if (output >= there) malformed("a tensor that is not there");
  sequence.outputs = outputs;
  return sequence;
}

}  // namespace reformer
