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
// How many adjacent elements of transposed tensors, which belong to as many lines, a kernel may access at once; 0 if no
// tensor is transposed.
int lines_per_access(const ProgramCall& call);

}  // namespace reformer
