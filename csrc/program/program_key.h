// The key of plans for a program's call, without the shape and the device.
#pragma once

#include <array>
#include <cstdint>

#include "accesses.h"
#include "program.h"

namespace reformer {

struct ProgramKey {
  int64_t number = -1;                                    // the program's number; -1: none
  Stored result = Stored::result;                         // the result's type
  int32_t elements_per_thread = 0, lines_per_access = 0;  // as in accesses.h
  // 4 bits for each of the first kMostInputs inputs: the type, and whether it has a placement. Kernels support no more
  // inputs.
  std::array<uint64_t, 2> input_types{};
  std::array<uint64_t, 3> accesses{};    // 4 bits for each input and for acc: elements per access
  std::array<uint64_t, 2> placements{};  // 8 bits for each of the first 16: number of digits, and whether transposed
  std::array<uint64_t, 3> places{};      // 5 bits for each input: the number of its placement
  uint64_t map_widths = 0;               // 8 bits for each of the first 8 maps
  uint32_t placed_outputs = 0;           // one bit for each of the first 32

  static constexpr size_t kMostInputs = Accesses::kMostInputs;

  ProgramKey() = default;
  explicit ProgramKey(const ProgramCall& call);  // the program must be interned

  bool operator==(const ProgramKey& other) const {
    return number == other.number && result == other.result && elements_per_thread == other.elements_per_thread &&
           lines_per_access == other.lines_per_access && input_types == other.input_types &&
           accesses == other.accesses && placements == other.placements && places == other.places &&
           map_widths == other.map_widths && placed_outputs == other.placed_outputs;
  }
  uint64_t hash() const;
};

}  // namespace reformer
