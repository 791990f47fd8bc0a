#include <algorithm>

#include "weight_grad.h"

namespace reformer::depthwise {
namespace {

constexpr int64_t kGroupBytes = 24 << 10;  // of x and dy in scratch: most of the first-level cache

}  // namespace

WeightGradConfig configure_weight_grad(const ConvProblem& p, int threads, int lanes) {
  WeightGradConfig config;
  config.rows = {0, 1, p.out_h(), 0, 1, p.r, -p.pad_h, p.stride_h, p.dilation_h};
  config.columns = {0, 1, p.out_w(), 0, 1, p.s, -p.pad_w, p.stride_w, p.dilation_w};
  config.x = input_planes(p);
  config.y = output_planes(p);
  config.filter = filter_planes(p);
  config.multiplier = p.group_k();
  config.blocks = Blocks(p.layout, p.k, lanes);

  config.lead = p.pad_w;
  config.x_pitch =
      config.lead +
      std::max(config.x.width, config.columns.in(config.columns.out_count - 1, config.columns.tap_count - 1) + 1);
  const int64_t vector_bytes = lanes * sum_size(p.dtype);
  const int64_t row_bytes = (p.stride_h * config.x_pitch + config.y.width) * vector_bytes;
  const int64_t most =
      std::max<int64_t>(1, kScratchBandBytes / (row_bytes * config.blocks.vectors) - config.source({0, 1}).size());
  config.bands = band_count(config.y.height, most, config.blocks.per_segment * p.n, threads);
  config.band_rows = (config.y.height + config.bands - 1) / config.bands;
  config.group_rows = std::max<int64_t>(1, kGroupBytes / row_bytes);
  config.steps = config.bands * p.n;
  config.parts = band_count(config.steps, config.steps, config.blocks.per_segment, threads);
  config.x_rows = 0;
  for (int64_t row = 0; row < config.y.height; row += config.band_rows)
    config.x_rows =
        std::max(config.x_rows, config.source({row, std::min(row + config.band_rows, config.y.height)}).size());
  return config;
}

void WeightGradConfig::place_pixels() {
  x_at = scratch_positions(x_rows, x.width, x_pitch, lead);
  y_at = scratch_positions(band_rows, y.width, y.width, 0);
  filter_at = scratch_positions(filter.height, filter.width, filter.width, 0);
}

// For the lanes of any instruction set, including those that this machine does not have.
int64_t weight_grad_workspace_bytes(const ConvProblem& p, const Device& device) {
  const int sum_bytes = int(sum_size(p.dtype)), vector_bytes = 16 << int(device.isa);
  const WeightGradConfig config = configure_weight_grad(p, device.threads, vector_bytes / sum_bytes);
  return config.parts > 1 ? config.blocks.per_segment * config.parts * config.blocks.planes * config.taps() * sum_bytes
                          : 0;
}

Range WeightGradConfig::source(Range y_rows) const {
  const int64_t begin = std::clamp(rows.in(y_rows.begin, 0), int64_t{0}, x.height);
  return {begin, std::clamp(rows.in(y_rows.end - 1, rows.tap_count - 1) + 1, begin, x.height)};
}

}  // namespace reformer::depthwise
