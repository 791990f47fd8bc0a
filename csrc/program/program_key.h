// What a plan for a program's call depends on, besides the shape and the device.
#pragma once

#include <array>
#include <cstdint>

#include "program.h"

namespace reformer {

struct ProgramKey {
  int64_t number = -1;              // the program's own; -1: there is none
  Stored result = Stored::result;   // the result's type
  int32_t elements_per_access = 0;  // as below
  // 4 bits for each of the first kMostInputs: the type, and whether rows are apart. Kernels take no more.
  std::array<uint64_t, 2> input_types{};

  static constexpr size_t kMostInputs = 32;

  ProgramKey() = default;
  explicit ProgramKey(const ProgramCall& call);  // of an interned program

  bool operator==(const ProgramKey& other) const {
    return number == other.number && result == other.result && elements_per_access == other.elements_per_access &&
           input_types == other.input_types;
  }
  uint64_t hash() const;
};

// How many adjacent elements a kernel may read at once: 16 bytes of the result, fewer if a channel's inputs or rows
// that are apart are not aligned to that.
int elements_per_access(const ProgramCall& call);

}  // namespace reformer
