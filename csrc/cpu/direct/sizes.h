// The sizes in a direct convolution's config (config.h), which determine its memory. They are computed before there is
// a config, without allocating.
#pragma once

#include "conv/problem.h"

namespace reformer {

// The extent along height or width.
struct DirectExtent {
  int32_t positions;                     // of one phase of the target
  int32_t source_step, target_step;      // stride in forward and weight_grad: (stride, 1), in input_grad: (1, stride)
  int32_t before;                        // rows of padding before the source
  int32_t max_shift;                     // over all taps
  int32_t source_phases, target_phases;  // number of phases; of the source, only those read by a tap

  static DirectExtent of_source(int32_t out, int32_t filter, int32_t pad, int32_t stride, int32_t dilation);
  static DirectExtent of_target(int32_t in, int32_t filter, int32_t pad, int32_t stride, int32_t dilation);
  static DirectExtent height(const ConvProblem& problem);
  static DirectExtent width(const ConvProblem& problem);
};

struct DirectSizes {
  int32_t source_channels, target_channels;  // per group
  int32_t groups_per_block, blocks;          // groups_per_block: groups that are packed together
  int32_t rows, strips;                      // positions of h per strip (the last one may be shorter), strips per image
  int64_t pitch;                             // positions of w, including room for shifts
  int64_t plane_step;                        // elements from one plane of a strip to the next
  int64_t target_step;  // elements from one channel of the target's strip, packed alike, to the next

  DirectSizes(const ConvProblem& problem, int32_t threads);

  int32_t passes() const { return passes_; }
  int64_t planes_of_channel() const { return planes_of_channel_; }
  // Elements of all channels of a block of groups.
  int64_t planes_numel() const { return planes_of_channel_ * plane_step * groups_per_block * source_channels; }
  int64_t target_numel() const { return passes_ * target_step * groups_per_block * target_channels; }
  int64_t strip_numel() const { return planes_numel() + target_numel(); }

 private:
  int32_t passes_, planes_of_channel_;  // numbers of phases of the target and of the source, over both dimensions

  void set_rows(int32_t value, const DirectExtent& h, const DirectExtent& w);
};

}  // namespace reformer
