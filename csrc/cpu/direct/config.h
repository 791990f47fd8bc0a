// How a direct convolution walks its tensors. Every direction becomes one form without strides,
//   target[m][i][j] = sum over taps d of weights[m][d] * plane[d][i + shift_h(d)][j + shift_w(d)],
// by taking tensors apart into phases: every stride-th row and column. Forward and weight_grad split the source x into
// phases, input_grad splits the target dx, where each phase (a pass) is reached by taps of its own. The planes of a
// strip of rows are packed with their padding; all have the same pitch, so that a shift is an offset and a strip is one
// long row (positions between pitch and width are computed and dropped).
#pragma once

#include <vector>

#include "sizes.h"

namespace reformer {

// The height or the width.
struct DirectAxis : DirectExtent {
  struct Tap {
    int32_t tap;    // of the filter, along this axis
    int32_t phase;  // index in phases
    int32_t shift;
  };
  std::vector<int32_t> phases;           // of the source
  std::vector<std::vector<Tap>> passes;  // the taps of each phase of the target

  static DirectAxis of_source(const DirectExtent& extent, int32_t filter, int32_t dilation);
  static DirectAxis of_target(const DirectExtent& extent, int32_t filter, int32_t pad, int32_t dilation);

  // The positions [first, last) of a phase, of those up to `count` from `begin` on, that lie in a source of this size.
  void inside(int32_t phase, int32_t begin, int32_t count, int32_t size, int32_t& first, int32_t& last) const;
};

// Element strides of a dense activation tensor, channels of all groups.
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

  // For each tap and source channel of a pass, in the order channel, r, s: where its plane begins, shift included.
  std::vector<int32_t> offsets(int32_t pass) const;
};

}  // namespace reformer
