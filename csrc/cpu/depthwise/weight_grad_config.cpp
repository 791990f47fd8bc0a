#include <algorithm>

#include "weight_grad.h"

namespace reformer::depthwise {
namespace {

constexpr int64_t kGroupBytes = 24 << 10;  // of x and dy in scratch: most of a first-level cache

}  // namespace

WeightGradPlan plan_weight_grad(const ConvProblem& p, int threads, int lanes) {
  WeightGradPlan plan;
  plan.rows = {0, 1, p.out_h(), 0, 1, p.r, -p.pad_h, p.stride_h, p.dilation_h};
  plan.columns = {0, 1, p.out_w(), 0, 1, p.s, -p.pad_w, p.stride_w, p.dilation_w};
  plan.x = input_planes(p);
  plan.y = output_planes(p);
  plan.filter = filter_planes(p);
  plan.multiplier = p.group_k();
  plan.blocks = Blocks(p.layout, p.k, lanes);

  plan.lead = p.pad_w;
  plan.x_pitch =
      plan.lead + std::max(plan.x.width, plan.columns.in(plan.columns.out_count - 1, plan.columns.tap_count - 1) + 1);
  const int64_t vector_bytes = lanes * sum_size(p.dtype);
  const int64_t row_bytes = (p.stride_h * plan.x_pitch + plan.y.width) * vector_bytes;
  const int64_t most =
      std::max<int64_t>(1, kScratchBandBytes / (row_bytes * plan.blocks.vectors) - plan.source({0, 1}).size());
  plan.bands = band_count(plan.y.height, most, plan.blocks.per_segment * p.n, threads);
  plan.band_rows = (plan.y.height + plan.bands - 1) / plan.bands;
  plan.group_rows = std::max<int64_t>(1, kGroupBytes / row_bytes);
  plan.steps = plan.bands * p.n;
  plan.parts = band_count(plan.steps, plan.steps, plan.blocks.per_segment, threads);
  plan.x_rows = 0;
  for (int64_t row = 0; row < plan.y.height; row += plan.band_rows)
    plan.x_rows = std::max(plan.x_rows, plan.source({row, std::min(row + plan.band_rows, plan.y.height)}).size());
  return plan;
}

void WeightGradPlan::place_pixels() {
  x_at = scratch_positions(x_rows, x.width, x_pitch, lead);
  y_at = scratch_positions(band_rows, y.width, y.width, 0);
  filter_at = scratch_positions(filter.height, filter.width, filter.width, 0);
}

// For the lanes of any instruction set, also one that this machine does not have.
int64_t weight_grad_workspace_bytes(const ConvProblem& p, const Device& device) {
  const int sum_bytes = int(sum_size(p.dtype)), vector_bytes = 16 << int(device.isa);
  const WeightGradPlan plan = plan_weight_grad(p, device.threads, vector_bytes / sum_bytes);
  return plan.parts > 1 ? plan.blocks.per_segment * plan.parts * plan.blocks.planes * plan.taps() * sum_bytes : 0;
}

Range WeightGradPlan::source(Range y_rows) const {
  const int64_t begin = std::clamp(rows.in(y_rows.begin, 0), int64_t{0}, x.height);
  return {begin, std::clamp(rows.in(y_rows.end - 1, rows.tap_count - 1) + 1, begin, x.height)};
}

}  // namespace reformer::depthwise
