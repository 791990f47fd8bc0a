// How a direct convolution walks its tensors. Every direction becomes one form without strides,
//   target[m][i][j] = sum over taps d of weights[m][d] * plane[d][i + shift_h(d)][j + shift_w(d)],
// by taking tensors apart into phases: every stride-th row and column. Forward and weight_grad split the source x into
// phases, input_grad splits the target dx, where each phase (a pass) is reached by taps of its own. The planes of a
// strip of rows are packed with their padding; all have the same pitch, so that a shift is an offset and a strip is one
// long row (positions between pitch and width are computed and dropped).
#pragma once

#include <vector>

#include "../../conv_problem.h"
#include "../../device.h"

namespace reformer {

// The height or the width.
struct DirectAxis {
  struct Tap {
    int32_t tap;    // of the filter, along this axis
    int32_t phase;  // index in phases
    int32_t shift;
  };
  int32_t positions;                     // i (or j) is below this
  int32_t source_step, target_step;      // stride in forward and weight_grad: (stride, 1), in input_grad: (1, stride)
  int32_t before;                        // rows of padding in front of the source
  int32_t max_shift = 0;                 // over all taps
  std::vector<int32_t> phases;           // of the source, those that some tap reads
  std::vector<std::vector<Tap>> passes;  // the taps of each phase of the target

  static DirectAxis of_source(int32_t out, int32_t filter, int32_t pad, int32_t stride, int32_t dilation);
  static DirectAxis of_target(int32_t in, int32_t filter, int32_t pad, int32_t stride, int32_t dilation);

  // The positions [first, last) of a phase, of those up to `count` from `begin` on, that lie in a source of this size.
  void inside(int32_t phase, int32_t begin, int32_t count, int32_t size, int32_t& first, int32_t& last) const;
};

// Element strides of a dense activation tensor, channels of all groups.
struct DirectView {
  int64_t image, channel, row, col;
  int32_t height, width;

  DirectView(Layout layout, int64_t channels, int32_t height, int32_t width);
};

struct DirectPlan {
  DirectAxis h, w;
  int32_t source_channels, target_channels;  // of a group
  DirectView source, target;
  int32_t groups_per_block, blocks;  // groups that are packed together
  int32_t rows, strips;              // positions of h in a strip (the last may be shorter), strips in an image
  int64_t pitch;                     // positions of w with the room for shifts
  int64_t plane_step;                // elements from plane to plane of a strip
  int64_t target_step;               // elements from channel to channel of a strip of the target, packed alike

  DirectPlan(const ConvProblem& problem, int32_t threads);

  int32_t passes() const { return static_cast<int32_t>(h.passes.size() * w.passes.size()); }
  int64_t planes_of_channel() const { return static_cast<int64_t>(h.phases.size() * w.phases.size()); }
  // Of all channels of a block of groups.
  int64_t planes_numel() const { return planes_of_channel() * plane_step * groups_per_block * source_channels; }
  int64_t target_numel() const { return passes() * target_step * groups_per_block * target_channels; }
  int64_t strip_numel() const { return planes_numel() + target_numel(); }
  int32_t rows_of(int32_t strip) const { return strip + 1 < strips ? rows : h.positions - strip * rows; }

  // For each tap and source channel of a pass, in the order channel, r, s: where its plane begins, shift included.
  std::vector<int32_t> offsets(int32_t pass) const;

 private:
  void set_rows(int32_t value);
};

}  // namespace reformer
