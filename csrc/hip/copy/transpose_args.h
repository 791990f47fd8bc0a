// Shared by the transposing kernels and the host.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kTransposeThreads = 256, kTransposeTile = 64;

// Transposes matrices [lines][columns] to [columns][lines]. The tensor has several dimensions of matrices: a matrix's
// index is a number of three digits, the least significant first. Pitches are between lines, strides between matrices,
// in elements.
struct TransposeArgs {
  const void* from;
  void* to;
  int lines, columns;
  long long from_pitch, to_pitch;
  Divider by_along;  // tiles per line
  Divider by_digit[2];
  long long from_stride[3], to_stride[3];
};

}  // namespace reformer
