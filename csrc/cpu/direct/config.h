// How a direct convolution traverses its tensors. Every direction is reduced to one form without strides,
//   target[m][i][j] = sum over taps d of weights[m][d] * plane[d][i + shift_h(d)][j + shift_w(d)],
// by splitting tensors into phases: every stride-th row and column. Forward and weight_grad split the source x.
// input_grad splits the target dx; each of its phases (a pass) has its own subset of the taps. The planes of a strip of
// rows are packed with their padding and have equal pitch, so that a shift is an offset and a strip is one long row
// (positions between width and pitch are computed and dropped).
#pragma once

#include <vector>

#include "sizes.h"

namespace reformer {

// The height or width axis.
struct DirectAxis : DirectExtent {
  struct Tap {
    int32_t tap;    // of the filter, along this axis
    int32_t phase;  // index in `phases`
    int32_t shift;
  };
  std::vector<int32_t> phases;           // of the source
  std::vector<std::vector<Tap>> passes;  // the taps of each phase of the target

  static DirectAxis of_source(const DirectExtent& extent, int32_t filter, int32_t dilation);
  static DirectAxis of_target(const DirectExtent& extent, int32_t filter, int32_t pad, int32_t dilation);

  // The range [first, last) of those of the `count` positions of a phase from `begin` on that lie in a source of this
  // size.
  void inside(int32_t phase, int32_t begin, int32_t count, int32_t size, int32_t& first, int32_t& last) const;
};

// Element strides of a dense activation tensor with the channels of all groups.
struct DirectView {
  int64_t image, channel, row, col;
  int32_t height, width;

  DirectView(Layout layout, int64_t channels, int32_t height, int32_t width);
};

struct DirectConfig : DirectSizes {
  DirectAxis h, w;
  DirectView source, target;

  DirectConfig(const ConvProblem& problem, int32_t threads);

  int32_t rows_of(int32_t strip) const { return strip + 1 < strips ? rows : h.positions - strip * rows; }

  // The offset of the plane, including the shift, for each tap and source channel of a pass, in the order channel, r,
  // s.
  std::vector<int32_t> offsets(int32_t pass) const;
};

}  // namespace reformer
