// A program's work beside that of the kernel that it follows, as far as a choice may depend on it.
#pragma once

#include <cstdint>

#include "program.h"

namespace reformer {

struct ProgramTraits {
  int32_t fulls = 0, channels = 0;        // inputs: of as many elements as the result, and of its channels
  int32_t outputs = 0, reductions = 0;    // of as many elements; sums and the like, each once
  int32_t operations = 0, functions = 0;  // for each element: additions and the like; exponentials, roots, quotients
  bool is_random = false;
  int64_t read = 0, written = 0;  // bytes of inputs and outputs of as many elements as the result

  ProgramTraits() = default;  // of one that does nothing
  explicit ProgramTraits(const ProgramCall& call);
};

}  // namespace reformer
