// What operators are given again and again, by a number: programs and sequences, decoded once, and geometries. To hand
// a list over takes longer than to decide what to run. Kept for good: there are as many as a process has met.
#pragma once

#include <array>
#include <optional>

#include "epilogue.h"
#include "sequence.h"

namespace reformer {

struct KeptProgram {
  Epilogue whole;
  std::optional<Epilogue> after_bias;  // where it begins with a bias: the rest of it, for a convolution with that bias
};

// The number of a program's code. Throws as Epilogue::decode.
int64_t keep_program(const int64_t* code, int64_t size);
const KeptProgram& kept_program(int64_t number);  // throws std::invalid_argument if there is none

// Stride, padding and dilation, (height, width) each, and groups.
using KeptGeometry = std::array<int64_t, 7>;
int64_t keep_geometry(const int64_t* numbers);
const KeptGeometry& kept_geometry(int64_t number);  // throws std::invalid_argument if there is none

int64_t keep_sequence(const int64_t* code, int64_t size);  // throws as Sequence::decode
const Sequence& kept_sequence(int64_t number);             // throws std::invalid_argument if there is none

}  // namespace reformer
