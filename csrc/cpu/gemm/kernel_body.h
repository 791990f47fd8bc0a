// The body of kernel.cpp, compiled once for each instruction set.
#include "cpu/simd/runs.h"
#include "tile_shape.h"

namespace reformer::REFORMER_ISA {

template <class S, int ROWS, int VECTORS, GemmSum SUM>
void gemm_tile(const GemmTile<S>& t) {
  constexpr int L = kLanes<S>;
  const int last = t.cols - (VECTORS - 1) * L;  // columns of the last vector
  const auto load_cols = [&](const S* from, int v) {
    return v == VECTORS - 1 && last < L ? load_part<S>(from + v * L, last) : load<S>(from + v * L);
  };
  Vec<S> sum[ROWS][VECTORS];
  if (t.col_bias && !t.accumulate) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      const Vec<S> start = load_cols(t.col_bias, v);
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; ++m) sum[m][v] = start;
    }
  } else {
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m) {
      const Vec<S> start = broadcast(t.row_bias && !t.accumulate ? t.row_bias[m] : S(0));
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sum[m][v] = start;
    }
  }

  // Rows are addressed from two pointers: x86 address scales reach three rows beyond each.
  const S *low = t.a, *high = t.a + 4 * t.a_row, *b = t.b;
  const auto add_products = [&](int64_t depth) {
    for (int64_t d = 0; d < depth; ++d) {
      Vec<S> row[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) row[v] = load<S>(b + v * L);
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; ++m) {
        const Vec<S> a = broadcast(m < 4 ? low[m * t.a_row] : high[(m - 4) * t.a_row]);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) sum[m][v] = fma<S>(a, row[v], sum[m][v]);
      }
      low += t.a_step;
      high += t.a_step;
      b += t.b_step;
    }
  };
  add_in_runs<SUM == GemmSum::cascade ? kCascade : run_length(ROWS, VECTORS)>(sum, t.depth, add_products);

  if (t.accumulate)
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sum[m][v] += load_cols(t.c + m * t.c_row, v);
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m) {
    S* to = t.c + m * t.c_row;
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS - 1; ++v) store<S>(to + v * L, sum[m][v]);
    if (last < L)
      store_part<S>(to + (VECTORS - 1) * L, sum[m][VECTORS - 1], last);
    else
      store<S>(to + (VECTORS - 1) * L, sum[m][VECTORS - 1]);
  }
}

template <class S, GemmSum SUM, int ROWS, int... V>
void fill_row(GemmKernels<S>& kernels, std::integer_sequence<int, V...>) {
  ((kernels.kernel[ROWS][V] = gemm_tile<S, ROWS + 1, V + 1, SUM>), ...);
}

template <class S, GemmSum SUM, int... R>
GemmKernels<S> make_kernels(std::integer_sequence<int, R...>) {
  GemmKernels<S> kernels{sizeof...(R), kTileVectors, kLanes<S>, {}};
  (fill_row<S, SUM, R>(kernels, std::make_integer_sequence<int, kTileVectors>{}), ...);
  return kernels;
}

template <class S>
const GemmKernels<S>& gemm_kernels(GemmSum sum) {
  static const GemmKernels<S> runs = make_kernels<S, GemmSum::runs>(std::make_integer_sequence<int, kTileRows>{});
  static const GemmKernels<S> cascade =
      make_kernels<S, GemmSum::cascade>(std::make_integer_sequence<int, kCascadeTileRows>{});
  return sum == GemmSum::runs ? runs : cascade;
}

}  // namespace reformer::REFORMER_ISA
