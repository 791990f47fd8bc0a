// What a plan for a program's call depends on, besides the shape and the device.
#pragma once

#include <array>
#include <cstdint>

#include "program.h"

namespace reformer {

struct ProgramKey {
  int64_t number = -1;                                    // the program's own; -1: there is none
  Stored result = Stored::result;                         // the result's type
  int32_t elements_per_access = 0, lines_per_access = 0;  // as below
  // 4 bits for each of the first kMostInputs: the type, and whether it has a placement. Kernels take no more.
  std::array<uint64_t, 2> input_types{};
  uint64_t placements = 0;      // 4 bits for each of the first 16: how many digits, and whether it is turned
  uint32_t placed_outputs = 0;  // a bit for each of the first 32

  static constexpr size_t kMostInputs = 32;

  ProgramKey() = default;
  explicit ProgramKey(const ProgramCall& call);  // of an interned program

  bool operator==(const ProgramKey& other) const {
    return number == other.number && result == other.result && elements_per_access == other.elements_per_access &&
           lines_per_access == other.lines_per_access && input_types == other.input_types &&
           placements == other.placements && placed_outputs == other.placed_outputs;
  }
  uint64_t hash() const;
};

// How many adjacent elements a kernel may read at once: 16 bytes of the result, fewer if a channel's inputs or what has
// a placement are not aligned to that.
int elements_per_access(const ProgramCall& call);
// How many adjacent elements of turned tensors, which are of as many lines; 0 if there are none.
int lines_per_access(const ProgramCall& call);

}  // namespace reformer
