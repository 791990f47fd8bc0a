// How the stitch kernels are launched for a result: pure functions, without a GPU, for the operators and tests.
#pragma once

#include <algorithm>

#include "jit/gpu.h"
#include "program/program.h"
#include "stitch.h"

namespace reformer {

struct StitchPlan {
  StitchArgs args{};
  int count = 1;  // adjacent elements that a thread computes at once
  bool channels_along = false;
  gpu::Launch launch, finish;
  int64_t workspace_bytes = 0;  // for partial results of reductions
};

namespace stitch_plan {

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The logarithm of how many threads share a line: at most `most`, the most of those that are idle least often. Fewer
// than 8 would read less than a whole line of the cache at once.
inline int log_across(int groups, int most) {
  int best = 0;
  double least = 1e9;
  for (int log = most; log >= 3; --log) {
    const double idle = double(ceil_div(groups, 1 << log)) * (1 << log) / groups;
    if (idle < least) best = log, least = idle;
  }
  while (best > 0 && 1 << (best - 1) >= groups) --best;
  return best;
}

}  // namespace stitch_plan

// elements_per_access: how many adjacent elements a thread may read at once, a power of two. numbers: how many floats a
// partial result has for each channel and part. multiprocessors: the GPU's, or about as many.
inline StitchPlan plan_stitch(const ProgramShape& shape, int elements_per_access, int numbers, int multiprocessors) {
  using stitch_plan::ceil_div;
  StitchPlan plan;
  StitchArgs& a = plan.args;
  plan.channels_along = shape.layout == Layout::nhwc || shape.pixels == 1;
  a.channels = int(shape.channels);
  a.rows = int(shape.rows());
  a.lines = int(plan.channels_along ? shape.rows() : shape.images * shape.channels);
  a.width = int(plan.channels_along ? shape.channels : shape.pixels);
  a.by_channels = make_divider(a.channels);
  plan.count = elements_per_access;
  while (a.width % plan.count) plan.count /= 2;
  const int groups = a.width / plan.count;
  // A block of few channels has many lines, so that there are fewer partial results: of 2048 channels they would be as
  // many bytes as a third of the result.
  a.log_across = stitch_plan::log_across(groups, numbers && plan.channels_along ? 5 : 8);
  const int across = 1 << a.log_across, lines = kStitchThreads >> a.log_across;
  const int wanted = multiprocessors * 3;  // blocks: as many as run at once with 60 to 80 registers a thread
  if (plan.channels_along) {
    const int blocks_x = ceil_div(groups, across);
    // At least two lines of a thread are in flight at once.
    a.parts = std::clamp(ceil_div(a.lines, lines * 2), 1, std::max(1, ceil_div(wanted, blocks_x)));
    plan.launch.blocks_x = uint32_t(blocks_x);
    plan.launch.blocks_y = uint32_t(a.parts);
  } else {
    const int blocks_y = ceil_div(a.lines, lines), steps = ceil_div(groups, across);
    const int parts_along = std::clamp(wanted / blocks_y, 1, ceil_div(steps, 2));
    a.columns_each = ceil_div(steps, parts_along) * across * plan.count;
    plan.launch.blocks_x = uint32_t(ceil_div(a.width, a.columns_each));
    plan.launch.blocks_y = uint32_t(blocks_y);
    a.parts = int(shape.images) * int(plan.launch.blocks_x);
  }
  plan.launch.threads = plan.finish.threads = kStitchThreads;
  plan.launch.pdl = plan.finish.pdl = true;
  plan.finish.blocks_x = uint32_t(ceil_div(a.channels, kStitchFinishChannels));
  plan.workspace_bytes = int64_t{4} * numbers * a.parts * a.channels;
  return plan;
}

}  // namespace reformer
