// Long sums in registers. Part of an ISA body, after vec.h; no include guard, as there.
//
// Each product is added to the one before, which is fastest, but the rounding error of such a chain grows with the root
// of its length. So a long sum is taken in runs, whose sums are added up by themselves: with runs of 64 the error of
// 1000 products is a third as large. A run is long enough for this to cost 1 % of its time or less.

namespace reformer::REFORMER_ISA {

// Adds `depth` products to every sum; add_products(n) adds the next n. A run has at least RUN / 2 of them and at most
// 3/2 RUN.
template <int RUN, int ROWS, int VECTORS, class V, class Add>
REFORMER_INLINE void add_in_runs(V (&sum)[ROWS][VECTORS], int64_t depth, const Add& add_products) {
  V total[ROWS][VECTORS];
  for (bool first = true;; first = false) {
    const int64_t run = depth < RUN + RUN / 2 ? depth : RUN;
    add_products(run);
    depth -= run;
    if (depth <= 0 && first) return;
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) {
        total[m][v] = first ? sum[m][v] : total[m][v] + sum[m][v];
        sum[m][v] = V{};
      }
    if (depth <= 0) break;
  }
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) sum[m][v] = total[m][v];
}

// The length of a run where ROWS x VECTORS sums are in registers. With few of them additions wait for each other
// anyway, and such results are what other libraries sum in many lanes.
constexpr int run_length(int rows, int vectors) { return rows * vectors <= 8 ? 16 : 64; }

}  // namespace reformer::REFORMER_ISA
