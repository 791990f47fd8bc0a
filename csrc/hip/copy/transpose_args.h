// Shared by the transposing kernels and their host.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kTransposeThreads = 256, kTransposeTile = 64;

// Matrices of [lines][columns] become [columns][lines], in a tensor that has several dimensions of them: the index of a
// matrix is a number of three digits, the least significant first. Pitches are of lines, strides of matrices, in
// elements.
struct TransposeArgs {
  const void* from;
  void* to;
  int lines, columns;
  long long from_pitch, to_pitch;
  Divider by_along;  // the tiles of a line
  Divider by_digit[2];
  long long from_stride[3], to_stride[3];
};

}  // namespace reformer
