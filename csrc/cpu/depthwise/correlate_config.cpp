#include <algorithm>

#include "correlate.h"

namespace reformer::depthwise {
namespace {

std::vector<RowTaps> taps_of_rows(const Axis& axis) {
  std::vector<RowTaps> all(axis.out_size);
  for (const Phase& phase : axis.phases)
    for (int64_t t = 0; t < phase.out_count; ++t) {
      const Range taps = inside(phase.in(t, 0), phase.in_dilation, phase.tap_count, axis.in_size);
      all[phase.out_first + t * phase.out_step] = {phase.in(t, taps.begin),
                                                   phase.tap_first + taps.begin * phase.tap_step, phase.tap_step,
                                                   taps.size(), phase.in_dilation};
    }
  return all;
}

int64_t round_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

}  // namespace

int column_block(int64_t count) {
  int best = 8;
  for (int block : {7, 4})
    if (round_up(count, block) < round_up(count, best)) best = block;
  return best;
}

CorrelatePlan plan_correlate(const ConvProblem& p, int threads, int lanes) {
  const bool forward = p.direction == Direction::forward;
  CorrelatePlan plan;
  plan.rows = height_axis(p);
  plan.columns = width_axis(p);
  plan.row_taps = taps_of_rows(plan.rows);
  plan.source = forward ? input_planes(p) : output_planes(p);
  plan.result = forward ? output_planes(p) : input_planes(p);
  plan.filter = filter_planes(p);
  plan.direction = p.direction;
  plan.multiplier = p.group_k();
  plan.passes = forward ? 1 : plan.multiplier;

  plan.lead = 0;
  int64_t last_read = plan.source.width, last_written = 0;
  for (const Phase& phase : plan.columns.phases) plan.lead = std::max(plan.lead, -phase.in_first);
  for (const Phase& phase : plan.columns.phases) {
    const int64_t count = round_up(phase.out_count, column_block(phase.out_count));
    last_written = std::max(last_written, phase.out_first + (count - 1) * phase.out_step + 1);
    if (phase.tap_count > 0) last_read = std::max(last_read, phase.in(count - 1, phase.tap_count - 1) + 1);
  }
  plan.source_pitch = plan.lead + last_read;
  plan.result_pitch = last_written;

  const int64_t planes = p.n * plan.result.channels;
  plan.blocks = Blocks(p.layout, p.layout == Layout::nchw ? planes : plan.result.channels, lanes);
  plan.block_count = planes / plan.blocks.segment * plan.blocks.per_segment;
  const int64_t pixel_bytes = plan.blocks.planes * sum_size(p.dtype);
  const int64_t halo = plan.rows.source({0, 1}).size();
  const double sources = double(plan.source.height) / double(plan.result.height);
  const double row_bytes = (sources * double(plan.source_pitch) + double(plan.result_pitch)) * double(pixel_bytes);
  const int64_t most = std::max<int64_t>(1, int64_t(double(kScratchBandBytes) / row_bytes) - halo);
  plan.bands = band_count(plan.result.height, most, plan.block_count, threads);
  plan.band_rows = (plan.result.height + plan.bands - 1) / plan.bands;
  plan.source_rows = 0;
  for (int64_t row = 0; row < plan.result.height; row += plan.band_rows)
    plan.source_rows =
        std::max(plan.source_rows, plan.rows.source({row, std::min(row + plan.band_rows, plan.result.height)}).size());
  plan.source_at = scratch_positions(plan.source_rows, plan.source.width, plan.source_pitch, plan.lead);
  plan.result_at = scratch_positions(plan.band_rows, plan.result.width, plan.result_pitch, 0);
  plan.filter_at = scratch_positions(p.r, p.s, p.s, 0);
  return plan;
}

PlaneMap CorrelatePlan::source_map(int64_t pass) const {
  if (direction == Direction::forward) return {1, multiplier, 0};
  return {multiplier, 1, pass};
}

PlaneMap CorrelatePlan::filter_map(int64_t pass) const {
  if (direction == Direction::forward) return {1, 1, 0, result.channels};
  return {multiplier, 1, pass, result.channels};
}

}  // namespace reformer::depthwise
