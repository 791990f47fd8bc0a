#include "traits.h"

namespace reformer {
namespace {

bool is_function(ProgramOp op) {
  switch (op) {
    case ProgramOp::exp:
    case ProgramOp::log:
    case ProgramOp::log1p:
    case ProgramOp::sqrt:
    case ProgramOp::rsqrt:
    case ProgramOp::tanh:
    case ProgramOp::sigmoid:
    case ProgramOp::erf:
    case ProgramOp::normal_cdf:
    case ProgramOp::normal_pdf:
    case ProgramOp::div: return true;
    default: return false;
  }
}

}  // namespace

ProgramTraits::ProgramTraits(const ProgramCall& call) : reductions(int32_t(call.program.reductions.size())) {
  const Program& program = call.program;
  const int64_t elements = call.shape.numel();
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const ProgramOp kind = program.inputs[i].kind;
    channels += kind == ProgramOp::channel;
    is_random |= kind == ProgramOp::random;
    if (kind != ProgramOp::full) continue;
    ++fulls;
    read += elements * element_size(call.inputs[i].type);
  }
  for (const ProgramOutput& output : program.outputs) {
    if (!output.is_by_element()) continue;
    ++outputs;
    written += elements * element_size(call.stored_type(output));
  }
  const std::vector<Varies> varies = program.varies();
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const ProgramOp op = program.nodes[i].op;
    if (operands(op) == 0 || only(varies[i], Varies::channels))
      continue;  // one operation per channel costs next to nothing
    ++(is_function(op) ? functions : operations);
  }
}

}  // namespace reformer
