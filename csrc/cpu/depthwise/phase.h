// How one axis (height or width) of a convolution reads its source: as one phase in forward; in input_grad as one phase
// for each residue of the stride, which is a convolution of stride 1 with a part of the reversed filter.
#pragma once

#include <cstdint>
#include <vector>

#include "conv/problem.h"

namespace reformer::depthwise {

// Result t (0 <= t < out_count) is at out_first + t * out_step. It sums over its taps j (0 <= j < tap_count) the
// filter's element tap_first + j * tap_step times the source's element in_first + t * in_step + j * in_dilation, if
// that is inside the source.
struct Phase {
  int64_t out_first, out_step, out_count;
  int64_t tap_first, tap_step, tap_count;
  int64_t in_first, in_step, in_dilation;

  int64_t in(int64_t t, int64_t tap) const { return in_first + t * in_step + tap * in_dilation; }
  // The first t whose position is at least `position`.
  int64_t first_t(int64_t position) const;
};

// The half-open range of indices [begin, end).
struct Range {
  int64_t begin, end;
  int64_t size() const { return end > begin ? end - begin : 0; }
};

// The indices i in [0, count) with 0 <= first + i * step < size; step is at least 1.
Range inside(int64_t first, int64_t step, int64_t count, int64_t size);

struct Axis {
  int64_t in_size, out_size;  // of the tensors read and written
  std::vector<Phase> phases;  // every position is written by exactly one phase

  // The source range that the results [out.begin, out.end) read.
  Range source(Range out) const;
};

Axis height_axis(const ConvProblem& problem);  // forward or input_grad
Axis width_axis(const ConvProblem& problem);

}  // namespace reformer::depthwise
