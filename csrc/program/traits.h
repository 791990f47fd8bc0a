// The work that a program adds to that of the kernel before it, as far as a choice may depend on it.
#pragma once

#include <cstdint>

#include "program.h"

namespace reformer {

struct ProgramTraits {
  int32_t fulls = 0, channels = 0;        // numbers of inputs: with as many elements as the result, and of its channels
  int32_t outputs = 0, reductions = 0;    // numbers of full-size outputs, and of distinct reductions
  int32_t operations = 0, functions = 0;  // per element: additions and the like; exponentials, roots, quotients
  bool is_random = false;
  int64_t read = 0, written = 0;  // bytes of full-size inputs and outputs

  ProgramTraits() = default;  // of a program that does nothing
  explicit ProgramTraits(const ProgramCall& call);
};

}  // namespace reformer
