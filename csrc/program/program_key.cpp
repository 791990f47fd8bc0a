#include "program_key.h"

#include <algorithm>

namespace reformer {

ProgramKey::ProgramKey(const ProgramCall& call)
    : number(call.program.number), result(call.type), lines_per_access(reformer::lines_per_access(call)) {
  const Accesses access(call);
  elements_per_thread = access.elements;
  const size_t inputs = std::min(call.inputs.size(), kMostInputs);
  const auto put = [](auto& numbers, size_t i, uint64_t bits) { numbers[i / 16] |= bits << 4 * (i % 16); };
  for (size_t i = 0; i < inputs; ++i) {
    put(input_types, i, uint64_t(call.inputs[i].type) | (call.inputs[i].place >= 0 ? 8 : 0));
    put(accesses, i, uint64_t(access.inputs[i]));
    if (const int32_t place = call.inputs[i].place; place >= 0) places[i / 12] |= uint64_t(place) << 5 * (i % 12);
  }
  put(accesses, kMostInputs, uint64_t(access.acc));
  for (size_t i = 0; i < std::min<size_t>(call.placements.size(), 16); ++i) {
    const Placement& placement = call.placements[i];
    static_assert(Placement::kMostPacked == 4);
    const int columns = placement.repeats_columns() ? 7
                        : placement.is_transposed() ? 2 + int(placement.packed())
                                                    : placement.column_digits;
    placements[i / 8] |= uint64_t(placement.line_digits + 16 * columns) << 8 * (i % 8);
  }
  for (size_t i = 0; i < inputs; ++i)  // a mapped tensor has no columns in its placement
    if (const int32_t place = call.inputs[i].place; place >= 0 && place < 16 && is_read_by_lines(call, i))
      placements[size_t(place) / 8] |= uint64_t(16 * 8) << 8 * (size_t(place) % 8);
  int maps = 0;
  for (size_t i = 0; i < inputs; ++i)
    if (call.inputs[i].width && maps < 8) map_widths |= uint64_t(uint8_t(call.inputs[i].width)) << 8 * maps++;
  for (size_t i = 0; i < std::min<size_t>(call.places_of_outputs.size(), 32); ++i)
    placed_outputs |= uint32_t(call.places_of_outputs[i] >= 0) << i;
}

uint64_t ProgramKey::hash() const {
  uint64_t hash = uint64_t(number + 1) * 0x9e3779b97f4a7c15u;
  for (uint64_t more : {input_types[0], input_types[1], accesses[0], accesses[1], accesses[2], placements[0],
                        placements[1], places[0], places[1], places[2], map_widths, uint64_t(placed_outputs)})
    hash = (hash ^ more) * 0x9e3779b97f4a7c15u;
  return (hash ^ hash >> 32 ^ uint64_t(result) << 8 ^ uint64_t(elements_per_thread) ^
          uint64_t(lines_per_access) << 16) *
         0x9e3779b97f4a7c15u;
}

}  // namespace reformer
