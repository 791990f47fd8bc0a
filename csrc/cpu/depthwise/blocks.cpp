#include "blocks.h"

#include <algorithm>

namespace reformer::depthwise {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Blocks::Blocks(Layout layout, int64_t segment_planes, int64_t lanes) : segment(segment_planes) {
  const int64_t most = layout == Layout::nhwc ? kMaxBlockVectors : 1, all = ceil_div(segment, lanes);
  vectors = ceil_div(all, ceil_div(all, most));
  planes = vectors * lanes;
  per_segment = ceil_div(segment, planes);
}

int64_t band_count(int64_t rows, int64_t max_rows, int64_t blocks, int64_t threads) {
  const int64_t least = ceil_div(rows, max_rows);
  int64_t best = least;
  double best_cost = 1e30;
  for (int64_t bands = least; bands <= std::min(rows, least + 2 * threads); ++bands) {
    // Each band recomputes some rows of adjacent bands: estimated as 2% of a block.
    const double cost = double(ceil_div(blocks * bands, threads)) / double(bands) * (1 + 0.02 * double(bands));
    if (cost < best_cost) best = bands, best_cost = cost;
  }
  return ceil_div(rows, ceil_div(rows, best));
}

std::vector<int32_t> scratch_positions(int64_t rows, int64_t width, int64_t pitch, int64_t lead) {
  std::vector<int32_t> at(rows * width);
  for (int64_t row = 0, i = 0; row < rows; ++row)
    for (int64_t column = 0; column < width; ++column, ++i) at[i] = static_cast<int32_t>(row * pitch + lead + column);
  return at;
}

}  // namespace reformer::depthwise
