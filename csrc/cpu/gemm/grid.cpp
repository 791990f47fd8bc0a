#include "grid.h"

namespace reformer {
namespace {

// First row or column of a part.
int64_t begin(int64_t part, int64_t parts, int64_t size, int64_t tile) {
  const int64_t tiles = (size + tile - 1) / tile;
  return std::min(size, tiles * part / parts * tile);
}

}  // namespace

GemmGrid GemmGrid::choose(int64_t m, int64_t n, int64_t tile_rows, int64_t tile_cols, int64_t threads) {
  const int64_t m_tiles = (m + tile_rows - 1) / tile_rows, n_tiles = (n + tile_cols - 1) / tile_cols;
  GemmGrid best{1, 1};
  int64_t best_cost = -1;
  for (int64_t m_parts = 1; m_parts <= std::min(threads, m_tiles); ++m_parts) {
    const int64_t n_parts = std::min(threads / m_parts, n_tiles);
    const int64_t rows = (m_tiles + m_parts - 1) / m_parts * tile_rows;
    const int64_t cols = (n_tiles + n_parts - 1) / n_parts * tile_cols;
    const int64_t cost = rows * cols + 4 * (rows + cols);  // multiply, and load both operands
    if (best_cost < 0 || cost < best_cost) best = {m_parts, n_parts}, best_cost = cost;
  }
  return best;
}

GemmPart GemmGrid::part(int64_t m, int64_t n, int64_t rows, int64_t cols, int64_t depth, int64_t tile_rows,
                        int64_t tile_cols) const {
  return {begin(m, m_parts, rows, tile_rows),
          begin(m + 1, m_parts, rows, tile_rows),
          begin(n, n_parts, cols, tile_cols),
          begin(n + 1, n_parts, cols, tile_cols),
          0,
          depth};
}

int64_t weight_grad_sum_parts(int64_t m, int64_t n, int64_t depth, int64_t groups, int64_t threads) {
  if (groups >= threads || depth < 64 * threads) return 1;
  const double read_whole = double(std::min(m, n)) * double(depth) * double(threads - 1);
  return 4.0 * double(m) * double(n) * double(threads) < read_whole ? threads : 1;
}

}  // namespace reformer
