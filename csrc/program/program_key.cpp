#include "program_key.h"

#include <algorithm>

namespace reformer {
namespace {

// At most so many that each access of as many elements is aligned, up to 16 bytes. places: of their addresses' bits.
int aligned(int elements, uint64_t places, int64_t size) {
  while (elements > 1 && places % std::min<uint64_t>(16, uint64_t(elements * size))) elements /= 2;
  return elements;
}

// The bits of the addresses at which adjacent elements begin.
uint64_t places_of(const void* data, const Placement& placement, int64_t size) {
  const int turned = placement.is_turned();
  int64_t elements = 0;
  for (int i = turned; i < placement.line_digits; ++i) elements |= placement.of_line[size_t(i)].stride;
  for (int i = 1 - turned; i < placement.column_digits; ++i) elements |= placement.of_column[size_t(i)].stride;
  return reinterpret_cast<uintptr_t>(data) | uint64_t(elements * size);
}

// Visits what has a placement and an element for each of the result's, with its elements' size.
template <class Visit>
void each_placed(const ProgramCall& call, Visit visit) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const ProgramOperand& input = call.inputs[i];
    if (input.place >= 0 && call.program.inputs[i].kind == ProgramOp::full)
      visit(input.data, call.placements[size_t(input.place)], element_size(input.type));
  }
  for (size_t i = 0; i < call.places_of_outputs.size(); ++i)
    if (const int32_t place = call.places_of_outputs[i]; place >= 0)
      visit(call.outputs[i], call.placements[size_t(place)], element_size(call.stored_type(call.program.outputs[i])));
}

// The same of a table's rows.
uint64_t row_places(const void* data, const Table& table, int64_t size) {
  return reinterpret_cast<uintptr_t>(data) | uint64_t(table.pitch * size);
}

}  // namespace

ProgramKey::ProgramKey(const ProgramCall& call)
    : number(call.program.number),
      result(call.type),
      elements_per_access(reformer::elements_per_access(call)),
      lines_per_access(reformer::lines_per_access(call)) {
  for (size_t i = 0; i < std::min(call.inputs.size(), kMostInputs); ++i)
    input_types[i / 16] |= (uint64_t(call.inputs[i].type) | (call.inputs[i].place >= 0 ? 8 : 0)) << 4 * (i % 16);
  for (size_t i = 0; i < std::min<size_t>(call.placements.size(), 16); ++i) {
    const Placement& placement = call.placements[i];
    placements |= uint64_t(placement.line_digits - 1 + 4 * (placement.is_turned() ? 3 : placement.column_digits))
                  << 4 * i;
  }
  for (size_t i = 0; i < std::min<size_t>(call.places_of_outputs.size(), 32); ++i)
    placed_outputs |= uint32_t(call.places_of_outputs[i] >= 0) << i;
}

uint64_t ProgramKey::hash() const {
  uint64_t hash = uint64_t(number + 1) * 0x9e3779b97f4a7c15u;
  for (uint64_t more : {input_types[0], input_types[1], placements, uint64_t(placed_outputs)})
    hash = (hash ^ more) * 0x9e3779b97f4a7c15u;
  return (hash ^ hash >> 32 ^ uint64_t(result) << 8 ^ uint64_t(elements_per_access) ^
          uint64_t(lines_per_access) << 16) *
         0x9e3779b97f4a7c15u;
}

int elements_per_access(const ProgramCall& call) {
  int elements = int(16 / element_size(call.type));
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const ProgramOperand& input = call.inputs[i];
    const int64_t size = element_size(input.type);
    if (call.program.inputs[i].kind == ProgramOp::channel || call.program.inputs[i].kind == ProgramOp::plane)
      elements = aligned(elements, reinterpret_cast<uintptr_t>(input.data), size);
    else if (call.program.inputs[i].kind == ProgramOp::table)
      elements =
          aligned(elements, row_places(input.data, call.tables[size_t(call.program.inputs[i].table)], size), size);
  }
  each_placed(call, [&](const void* data, const Placement& placement, int64_t size) {
    if (placement.is_turned()) return;
    elements = aligned(elements, places_of(data, placement, size), size);
    while (placement.adjacent_columns() % elements) elements /= 2;  // no access goes on in another digit
  });
  return elements;
}

int lines_per_access(const ProgramCall& call) {
  const int most = int(16 / element_size(call.type));
  int lines = 0;
  each_placed(call, [&](const void* data, const Placement& placement, int64_t size) {
    if (!placement.is_turned()) return;
    lines = aligned(lines ? lines : most, places_of(data, placement, size), size);
    while (placement.adjacent_lines() % lines) lines /= 2;
  });
  return lines;
}

}  // namespace reformer
