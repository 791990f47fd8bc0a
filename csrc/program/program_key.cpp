#include "program_key.h"

#include <algorithm>

namespace reformer {

ProgramKey::ProgramKey(const ProgramCall& call)
    : number(call.program.number), result(call.type), elements_per_access(reformer::elements_per_access(call)) {
  for (size_t i = 0; i < std::min(call.inputs.size(), kMostInputs); ++i)
    input_types[i / 16] |= (uint64_t(call.inputs[i].type) | (call.inputs[i].pitch ? 8 : 0)) << 4 * (i % 16);
}

uint64_t ProgramKey::hash() const {
  uint64_t hash = uint64_t(number + 1) * 0x9e3779b97f4a7c15u;
  for (uint64_t types : input_types) hash = (hash ^ types) * 0x9e3779b97f4a7c15u;
  return (hash ^ hash >> 32 ^ uint64_t(result) << 8 ^ uint64_t(elements_per_access)) * 0x9e3779b97f4a7c15u;
}

int elements_per_access(const ProgramCall& call) {
  int elements = int(16 / element_size(call.type));
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const ProgramOperand& input = call.inputs[i];
    if (call.program.inputs[i].kind != ProgramOp::channel && !input.pitch) continue;
    const int64_t size = element_size(input.type);
    const uint64_t places = reinterpret_cast<uintptr_t>(input.data) | uint64_t(input.pitch * size);
    while (elements > 1 && places % std::min<uint64_t>(16, uint64_t(elements * size))) elements /= 2;
  }
  return elements;
}

}  // namespace reformer
