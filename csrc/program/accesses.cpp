#include "accesses.h"

#include <algorithm>
#include <numeric>

#include "axis_maps.h"

namespace reformer {
namespace {

// The most elements per thread if some of them are read one by one: with more, the threads of a warp would access too
// many lines of the first-level cache at once.
constexpr int kMostApart = 4;
constexpr uint64_t kSector = 32;  // bytes that memory is accessed by
// Lines that follow one another in a mapped tensor, at least, for several of them to be read at once.
constexpr int64_t kLeastAdjacent = 8;

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
  const int first = placement.is_transposed();
  int64_t elements = 0;
  for (int i = first; i < placement.line_digits; ++i) elements |= placement.of_line[size_t(i)].stride;
  for (int i = 0; i < placement.column_digits; ++i)
    if (const int64_t stride = placement.of_column[size_t(i)].stride; stride != 1) elements |= stride;
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
      return places_of(call, static_cast<const char*>(operand.data) - kind.shift * size, operand.place, size) |
             uint64_t(kind.alignment * size);
    case ProgramOp::table: return row_places(operand.data, call.tables[size_t(kind.table)].pitch, size);
    case ProgramOp::plane: return row_places(operand.data, call.shape.channels, size);
    case ProgramOp::channel: return row_places(operand.data, 0, size);
    default: return 0;
  }
}

// Visits the placements of all tensors that have one and an element for each of the result's.
template <class Visit>
void each_placed(const ProgramCall& call, Visit visit) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const ProgramOp kind = call.program.inputs[i].kind;
    if (call.inputs[i].place >= 0 && (kind == ProgramOp::full || kind == ProgramOp::mapped))
      visit(call.placements[size_t(call.inputs[i].place)]);
  }
  for (int32_t place : call.places_of_outputs)
    if (place >= 0) visit(call.placements[size_t(place)]);
}

// A tensor of which elements of several lines are accessed at once.
struct Lines {
  bool is_written;
  uint64_t places;  // bitwise or of the addresses at which runs of adjacent elements begin
  int64_t size;     // of an element
  int packed;       // adjacent columns
  int64_t count;    // so many lines, from any multiple on, are adjacent
};

template <class Visit>
void each_by_lines(const ProgramCall& call, Visit visit) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!is_read_by_lines(call, i)) continue;
    const Placement& placement = call.placements[size_t(call.inputs[i].place)];
    int64_t count = placement.of_line[0].count;
    if (call.program.inputs[i].kind == ProgramOp::mapped)
      for (const AxisMap& map : AxisMaps(call, i))
        if (!map.by_column)
          count = std::gcd(count, call.placements[size_t(call.inputs[map.input].place)].of_line[0].count);
    visit(Lines{false, places_of(call, i), element_size(call.inputs[i].type), int(placement.packed()), count});
  }
  for (size_t i = 0; i < call.places_of_outputs.size(); ++i) {
    const int32_t place = call.places_of_outputs[i];
    if (place < 0 || !call.placements[size_t(place)].is_transposed()) continue;
    const Placement& placement = call.placements[size_t(place)];
    const int64_t size = element_size(call.stored_type(call.program.outputs[i]));
    visit(Lines{true, places_of(call.outputs[i], placement, size), size, int(placement.packed()),
                placement.of_line[0].count});
  }
}

int most(const ProgramCall& call) { return int(16 / element_size(call.type)); }

}  // namespace

bool is_read_by_lines(const ProgramCall& call, size_t input) {
  const int32_t place = call.inputs[input].place;
  if (place < 0) return false;
  const Placement& placement = call.placements[size_t(place)];
  if (call.program.inputs[input].kind != ProgramOp::mapped) return placement.is_transposed();
  const AxisMaps maps(call, input);
  const Placement::Digit& first = placement.of_line[0];
  const bool is_adjacent = first.stride == 1 && first.count >= kLeastAdjacent && first.count % 2 == 0;
  if (!is_adjacent || !maps.of_columns() || !maps.only_choose() || call.program.needs_rows) return false;
  if (call.program.inputs[input].is_within) return false;
  return std::all_of(maps.begin(), maps.end(), [&](const AxisMap& map) {
    return map.by_column || call.placements[size_t(call.inputs[map.input].place)].of_line[0].stride == 0;
  });
}

Accesses::Accesses(const ProgramCall& call) : elements(most(call)), acc(elements), inputs{} {
  const auto is_transposed = [&](int32_t place) {
    return place >= 0 && call.placements[size_t(place)].is_transposed();
  };
  each_placed(call, [&](const Placement& placement) {
    if (placement.column_digits > 1 && !placement.is_transposed())  // elements must not cross into the next digit
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
    inputs[i] = is_read_by_lines(call, i) ? aligned(most(call), places_of(call, i), element_size(call.inputs[i].type))
                                          : read(places_of(call, i), element_size(call.inputs[i].type));
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
  each_by_lines(call, [&](const Lines& of) {
    lines = std::min(lines ? lines : most(call), std::max(1, most(call) / of.packed));
    lines = std::max(1, aligned(lines * of.packed, of.places, of.size) / of.packed);
    while (of.count % lines) lines /= 2;
  });
  return lines;
}

bool writes_parts_of_sectors(const ProgramCall& call) {
  bool found = false;
  each_by_lines(call, [&](const Lines& of) { found |= of.is_written && of.places % kSector; });
  return found;
}

int packed_columns(const ProgramCall& call) {
  int packed = 1;
  each_by_lines(call, [&](const Lines& of) { packed = std::max(packed, of.packed); });
  return packed;
}

}  // namespace reformer
