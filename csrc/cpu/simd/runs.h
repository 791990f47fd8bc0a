// Long sums in registers. Part of an ISA body, after vec.h; no include guard.
//
// Adding each product to the previous sum is fastest, but the rounding error of such a chain grows with the root of its
// length. So a long sum is split into runs, whose sums are added up separately: with runs of 64 the error of 1000
// products is a third as large. Runs are long enough for this to cost at most 1 % of the time.

namespace reformer::REFORMER_ISA {

// Adds `depth` products to every sum; add_products(n) adds the next n. A run has RUN / 2 to 3/2 RUN products.
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

// Length of a run if ROWS x VECTORS sums are in registers. With few sums, additions wait for each other anyway, and
// other libraries sum such results in many lanes.
constexpr int run_length(int rows, int vectors) { return rows * vectors <= 8 ? 16 : 64; }

}  // namespace reformer::REFORMER_ISA
