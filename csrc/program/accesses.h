// How many adjacent elements of each tensor a kernel reads or writes at once.
#pragma once

#include <array>
#include <cstdint>

#include "program.h"

namespace reformer {

// Threads of a stitched kernel compute `elements` adjacent ones of a row at once, all of them or those before the row's
// end. What is stored is written by one access; what is read, by one or by several, as its rows are aligned. All are
// powers of two.
struct Accesses {
  static constexpr size_t kMostInputs = 32;

  int elements;
  int acc;
  std::array<int, kMostInputs> inputs;

  explicit Accesses(const ProgramCall& call);
};

// How many adjacent channels' numbers a kernel may read at once, for 16 bytes of the result.
int channels_per_access(const ProgramCall& call);
// How many adjacent elements of transposed tensors, which are of as many lines; 0 if there are none.
int lines_per_access(const ProgramCall& call);

}  // namespace reformer
