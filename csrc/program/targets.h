// Targets: places to which a program stores the rows of an output, so that rows are written in the order of what reads
// them, as of rolled windows.
//
// A table of targets has `width` numbers for each line of the result, where a placement of the table's own says. A
// number is a place, in elements, that is added to the address by the output's placement; or -2 - place, if zeros are
// stored there instead of the row, as a pad has them; or -1 for nothing. No two numbers are the same place.
#pragma once

#include "program.h"

namespace reformer {

// Calls store(place, is_row) for each target of a line; for an output without targets, store(0, true).
template <class Store>
void each_target(const ProgramCall& call, const ProgramOutput& output, int64_t line, const Store& store) {
  if (output.targets < 0) return store(0, true);
  const ProgramOperand& table = call.inputs[size_t(output.targets)];
  const auto* const numbers = static_cast<const int32_t*>(table.data) + call.placements[size_t(table.place)].line(line);
  for (int32_t i = 0; i < table.width; ++i)
    if (const int64_t target = numbers[i]; target != -1) store(target < 0 ? -2 - target : target, target >= 0);
}

}  // namespace reformer
