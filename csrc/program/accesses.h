// How many adjacent elements of each tensor a kernel reads or writes in one access.
#pragma once

#include <array>
#include <cstdint>

#include "program.h"

namespace reformer {

// Each thread of a stitched kernel computes `elements` adjacent elements of a row (fewer at the row's end). Outputs are
// written in one access; inputs are read in one or several, depending on the alignment of their rows. All numbers are
// powers of two.
struct Accesses {
  static constexpr size_t kMostInputs = 32;

  int elements;
  int acc;
  std::array<int, kMostInputs> inputs;

  explicit Accesses(const ProgramCall& call);
};

// How many adjacent channels' values a kernel may read in one access, for 16 bytes of the result.
int channels_per_access(const ProgramCall& call);
// True if a kernel reads elements of several lines of this input at once: it is transposed, or mapped with adjacent
// lines and a map of columns.
bool is_read_by_lines(const ProgramCall& call, size_t input);
// The number of lines whose elements a kernel may access at once, in tensors whose lines are adjacent; 0 if there are
// none.
int lines_per_access(const ProgramCall& call);
// True if runs of adjacent lines that a kernel writes begin within sectors of memory.
bool writes_parts_of_sectors(const ProgramCall& call);
// Adjacent columns of these tensors, at most.
int packed_columns(const ProgramCall& call);

}  // namespace reformer
