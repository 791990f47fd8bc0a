// How a product's result is split among the threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace reformer {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The part of a product that one thread computes.
struct GemmPart {
  int64_t m0, m1, n0, n1, d0, d1;
};

// A grid of m_parts x n_parts parts of whole tiles.
struct GemmGrid {
  int64_t m_parts, n_parts;

  int64_t parts() const { return m_parts * n_parts; }

  // The grid for a product with these numbers of rows and columns, in tiles of tile_rows x tile_cols, with at most
  // `threads` parts.
  static GemmGrid choose(int64_t m, int64_t n, int64_t tile_rows, int64_t tile_cols, int64_t threads);

  // The part at (m, n) of a product of this size. Parts consist of whole tiles and are as equal as those allow.
  GemmPart part(int64_t m, int64_t n, int64_t rows, int64_t cols, int64_t depth, int64_t tile_rows,
                int64_t tile_cols) const;
};

// The number of parts into which a weight gradient's sum over all pixels is split: one per thread if splitting the
// result instead would make the threads read more than adding up the parts costs.
int64_t weight_grad_sum_parts(int64_t m, int64_t n, int64_t depth, int64_t groups, int64_t threads);

}  // namespace reformer
