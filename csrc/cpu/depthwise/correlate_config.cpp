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

CorrelateConfig configure_correlate(const ConvProblem& p, int threads, int lanes) {
  const bool forward = p.direction == Direction::forward;
  CorrelateConfig config;
  config.rows = height_axis(p);
  config.columns = width_axis(p);
  config.row_taps = taps_of_rows(config.rows);
  config.source = forward ? input_planes(p) : output_planes(p);
  config.result = forward ? output_planes(p) : input_planes(p);
  config.filter = filter_planes(p);
  config.direction = p.direction;
  config.multiplier = p.group_k();
  config.passes = forward ? 1 : config.multiplier;

  config.lead = 0;
  int64_t last_read = config.source.width, last_written = 0;
  for (const Phase& phase : config.columns.phases) config.lead = std::max(config.lead, -phase.in_first);
  for (const Phase& phase : config.columns.phases) {
    const int64_t count = round_up(phase.out_count, column_block(phase.out_count));
    last_written = std::max(last_written, phase.out_first + (count - 1) * phase.out_step + 1);
    if (phase.tap_count > 0) last_read = std::max(last_read, phase.in(count - 1, phase.tap_count - 1) + 1);
  }
  config.source_pitch = config.lead + last_read;
  config.result_pitch = last_written;

  const int64_t planes = p.n * config.result.channels;
  config.blocks = Blocks(p.layout, p.layout == Layout::nchw ? planes : config.result.channels, lanes);
  config.block_count = planes / config.blocks.segment * config.blocks.per_segment;
  const int64_t pixel_bytes = config.blocks.planes * sum_size(p.dtype);
  const int64_t halo = config.rows.source({0, 1}).size();
  const double sources = double(config.source.height) / double(config.result.height);
  const double row_bytes = (sources * double(config.source_pitch) + double(config.result_pitch)) * double(pixel_bytes);
  const int64_t most = std::max<int64_t>(1, int64_t(double(kScratchBandBytes) / row_bytes) - halo);
  config.bands = band_count(config.result.height, most, config.block_count, threads);
  config.band_rows = (config.result.height + config.bands - 1) / config.bands;
  config.source_rows = 0;
  for (int64_t row = 0; row < config.result.height; row += config.band_rows)
    config.source_rows = std::max(
        config.source_rows, config.rows.source({row, std::min(row + config.band_rows, config.result.height)}).size());
  config.source_at = scratch_positions(config.source_rows, config.source.width, config.source_pitch, config.lead);
  config.result_at = scratch_positions(config.band_rows, config.result.width, config.result_pitch, 0);
  config.filter_at = scratch_positions(p.r, p.s, p.s, 0);
  return config;
}

PlaneMap CorrelateConfig::source_map(int64_t pass) const {
  if (direction == Direction::forward) return {1, multiplier, 0};
  return {multiplier, 1, pass};
}

PlaneMap CorrelateConfig::filter_map(int64_t pass) const {
  if (direction == Direction::forward) return {1, 1, 0, result.channels};
  return {multiplier, 1, pass, result.channels};
}

}  // namespace reformer::depthwise
