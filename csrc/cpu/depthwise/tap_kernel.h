// The inner loop of depthwise weight_grad. Part of an ISA body.

namespace reformer::REFORMER_ISA {

// A row of the filter, and the rows of x and dy in scratch that its taps sum over. Strides are in elements.
template <class S>
struct TapRow {
  const S* x;  // at the first tap of the first column
  const S* dy;
  S* sums;                               // a vector per tap, added to
  int64_t x_row, x_step, x_tap, dy_row;  // to the next row, column and tap of x; to the next row of dy
  int64_t rows, columns;
};

// kTaps and kStep as in row_kernel; here columns of x are kStep apart.
template <class S, int kTaps, int kStep>
void tap_kernel(const TapRow<S>& row) {
  constexpr int L = kLanes<S>;
  constexpr int kColumns = 4;  // columns per step: they share loads of x
  // A multiply-add waits for the previous one of the same sum, so with few taps each tap has several sums.
  constexpr int kSums = kTaps >= 4 ? 1 : kTaps == 3 ? 2 : 4;
  const int64_t step = kStep > 0 ? kStep * L : row.x_step, tap = kStep > 0 ? L : row.x_tap;
  // Long chains of additions round much: after some rows the sums are added to the totals.
  constexpr int64_t kRun = 64;
  const int64_t run_rows = std::max<int64_t>(1, kRun / std::max<int64_t>(1, row.columns));
  Vec<S> sum[kSums][kTaps] = {}, total[kTaps] = {};
  const S *x_row = row.x, *dy_row = row.dy;
  for (int64_t y = 0, run_end = run_rows; y < row.rows; ++y) {
    const S *x = x_row, *dy = dy_row;
    int64_t left = row.columns;
    for (; left >= kColumns; left -= kColumns) {
#pragma GCC unroll 4
      for (int i = 0; i < kColumns; ++i) {
        const Vec<S> factor = load<S>(dy + i * L);
#pragma GCC unroll 9
        for (int s = 0; s < kTaps; ++s)
          sum[i % kSums][s] = fma<S>(load<S>(x + i * step + s * tap), factor, sum[i % kSums][s]);
      }
      x += kColumns * step;
      dy += kColumns * L;
    }
    for (; left > 0; --left) {
      const Vec<S> factor = load<S>(dy);
#pragma GCC unroll 9
      for (int s = 0; s < kTaps; ++s) sum[0][s] = fma<S>(load<S>(x + s * tap), factor, sum[0][s]);
      x += step;
      dy += L;
    }
    x_row += row.x_row;
    dy_row += row.dy_row;
    if (y + 1 < run_end && y + 1 < row.rows) continue;
    run_end += run_rows;
#pragma GCC unroll 9
    for (int s = 0; s < kTaps; ++s) {
#pragma GCC unroll 4
      for (int i = 1; i < kSums; ++i) sum[0][s] += sum[i][s];
      total[s] += sum[0][s];
#pragma GCC unroll 4
      for (int i = 0; i < kSums; ++i) sum[i][s] = Vec<S>{};
    }
  }
#pragma GCC unroll 9
  for (int s = 0; s < kTaps; ++s) store<S>(row.sums + s * L, load<S>(row.sums + s * L) + total[s]);
}

}  // namespace reformer::REFORMER_ISA
