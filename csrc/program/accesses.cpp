#include "accesses.h"

#include <algorithm>

#include "axis_maps.h"

namespace reformer {
namespace {

// The most elements per thread if some of them are read one by one: with more, the threads of a warp would access too
// many lines of the first-level cache at once.
constexpr int kMostApart = 4;

// The greatest divisor of `elements` (a power of two) for which accesses of so many elements are aligned, up to 16
// bytes. places: bitwise or of their addresses.
int aligned(int elements, uint64_t places, int64_t size) {
  while (elements > 1 && places % std::min<uint64_t>(16, uint64_t(elements * size))) elements /= 2;
  return elements;
}

// Bitwise or of the addresses at which rows begin, `pitch` elements apart.
uint64_t row_places(const void* data, int64_t pitch, int64_t size) {
  return reinterpret_cast<uintptr_t>(data) | uint64_t(pitch * size);
}

// Bitwise or of the addresses at which runs of adjacent elements begin.
uint64_t places_of(const void* data, const Placement& placement, int64_t size) {
  const int transposed = placement.is_transposed();
  int64_t elements = 0;
  for (int i = transposed; i < placement.line_digits; ++i) elements |= placement.of_line[size_t(i)].stride;
  for (int i = 1 - transposed; i < placement.column_digits; ++i) elements |= placement.of_column[size_t(i)].stride;
  return row_places(data, elements, size);
}

// For a tensor with one element for each of the result's: dense, or with this placement.
uint64_t places_of(const ProgramCall& call, const void* data, int32_t place, int64_t size) {
  if (place >= 0) return places_of(data, call.placements[size_t(place)], size);
  return row_places(data, call.shape.rows_are_lines() ? call.shape.channels : call.shape.pixels, size);
}

uint64_t places_of(const ProgramCall& call, size_t input) {
  const ProgramOperand& operand = call.inputs[input];
  const ProgramInput& kind = call.program.inputs[input];
  const int64_t size = element_size(operand.type);
  switch (kind.kind) {
    case ProgramOp::full: return places_of(call, operand.data, operand.place, size);
    case ProgramOp::mapped:
      if (const AxisMaps maps(call, input); maps.of_columns() && !maps.only_choose()) return 1;  // element by element
      return places_of(call, operand.data, operand.place, size) | uint64_t(kind.alignment * size);
    case ProgramOp::table: return row_places(operand.data, call.tables[size_t(kind.table)].pitch, size);
    case ProgramOp::plane: return row_places(operand.data, call.shape.channels, size);
    case ProgramOp::channel: return row_places(operand.data, 0, size);
    default: return 0;
  }
}

// Visits all tensors that have a placement and one element for each of the result's, with their element sizes.
template <class Visit>
void each_placed(const ProgramCall& call, Visit visit) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const ProgramOperand& input = call.inputs[i];
    const ProgramOp kind = call.program.inputs[i].kind;
    if (input.place >= 0 && (kind == ProgramOp::full || kind == ProgramOp::mapped))
      visit(input.data, call.placements[size_t(input.place)], element_size(input.type));
  }
  for (size_t i = 0; i < call.places_of_outputs.size(); ++i)
    if (const int32_t place = call.places_of_outputs[i]; place >= 0)
      visit(call.outputs[i], call.placements[size_t(place)], element_size(call.stored_type(call.program.outputs[i])));
}

int most(const ProgramCall& call) { return int(16 / element_size(call.type)); }

}  // namespace

Accesses::Accesses(const ProgramCall& call) : elements(most(call)), acc(elements), inputs{} {
  const auto is_transposed = [&](int32_t place) {
    return place >= 0 && call.placements[size_t(place)].is_transposed();
  };
  each_placed(call, [&](const void*, const Placement& placement, int64_t) {
    if (placement.column_digits > 1)  // a thread's elements must not cross into the next digit
      while (placement.of_column[0].count % elements) elements /= 2;
  });
  bool has_vectors = false;
  for (size_t i = 0; i < call.program.outputs.size(); ++i) {
    const ProgramOutput& output = call.program.outputs[i];
    if (const int32_t place = call.place_of_output(i); output.is_by_element() && !is_transposed(place)) {
      has_vectors = true;
      const int64_t size = element_size(call.stored_type(output));
      const uint64_t places = places_of(call, place < 0 ? nullptr : call.outputs[i], place, size);
      elements = aligned(elements, output.targets < 0 ? places : places | uint64_t(output.alignment * size), size);
    }
  }
  const auto read = [&](uint64_t places, int64_t size) {
    const int at_once = aligned(elements, places, size);
    if (at_once < elements) elements = std::min(elements, kMostApart);
    return std::min(at_once, elements);
  };
  if (call.program.has_acc())
    acc = read(places_of(call, nullptr, -1, element_size(call.type)), element_size(call.type));
  for (size_t i = 0; i < std::min(call.inputs.size(), kMostInputs); ++i)
    inputs[i] =
        is_transposed(call.inputs[i].place) ? elements : read(places_of(call, i), element_size(call.inputs[i].type));
  const auto is_wide = [&](size_t i) {
    const ProgramOp kind = call.program.inputs[i].kind;
    return inputs[i] > 1 && (kind == ProgramOp::full || kind == ProgramOp::mapped || kind == ProgramOp::table);
  };
  has_vectors |= call.program.has_acc() && acc > 1;
  for (size_t i = 0; i < std::min(call.inputs.size(), kMostInputs); ++i) has_vectors |= is_wide(i);
  // Rows of which everything is read one by one need not end within a thread's elements.
  if (call.program.needs_rows && !has_vectors) elements = acc = 1;
}

int channels_per_access(const ProgramCall& call) {
  int channels = most(call);
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (call.program.inputs[i].kind == ProgramOp::channel)
      channels = aligned(channels, places_of(call, i), element_size(call.inputs[i].type));
  return channels;
}

int lines_per_access(const ProgramCall& call) {
  int lines = 0;
  each_placed(call, [&](const void* data, const Placement& placement, int64_t size) {
    if (!placement.is_transposed()) return;
    lines = aligned(lines ? lines : most(call), places_of(data, placement, size), size);
    while (placement.adjacent_lines() % lines) lines /= 2;
  });
  return lines;
}

}  // namespace reformer
