// A tensor as a sequence of planes (n * channels + c), in either layout.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "conv/problem.h"

namespace reformer::depthwise {

struct Planar {
  int64_t channels, height, width;
  Layout layout;

  int64_t pixels() const { return height * width; }
  int64_t pixel_stride() const { return layout == Layout::nchw ? 1 : channels; }
  int64_t plane_offset(int64_t plane) const {
    if (layout == Layout::nchw) return plane * pixels();
    return plane / channels * channels * pixels() + plane % channels;
  }
};

inline Planar input_planes(const ConvProblem& p) { return {p.c, p.h, p.w, p.layout}; }
inline Planar output_planes(const ConvProblem& p) { return {p.k, p.out_h(), p.out_w(), p.layout}; }
// One plane per output channel; KRSC and KCRS are equal if groups have one input channel.
inline Planar filter_planes(const ConvProblem& p) { return {1, p.r, p.s, Layout::nchw}; }

// Maps a plane of one tensor to that of another, which may have several times as many channels, or a fraction of them,
// or no batch.
struct PlaneMap {
  int64_t multiply = 1, divide = 1, add = 0, period = std::numeric_limits<int64_t>::max();
  int64_t plane(int64_t index) const { return index % period * multiply / divide + add; }
  bool is_identity() const { return multiply == 1 && divide == 1 && add == 0; }
};

// Positions in scratch memory, in vectors, of the pixels of rows of this width: rows are `pitch` apart, and preceded by
// `lead` columns.
std::vector<int32_t> scratch_positions(int64_t rows, int64_t width, int64_t pitch, int64_t lead);

}  // namespace reformer::depthwise
