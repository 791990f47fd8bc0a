// The inner loop of depthwise forward and input_grad. Part of an ISA body.

namespace reformer::REFORMER_ISA {

// A row of results in scratch, and its sources. Strides are in elements.
template <class S>
struct Row {
  const S* x;                    // at the first tap of the first result
  const S* w;                    // the first tap
  S* out;                        // the first result
  const S* init;                 // one vector that the sums start from; if null, they are added to `out`
  int64_t x_row, x_step, x_tap;  // to the next tap row, result and tap
  int64_t w_row, w_tap;
  int64_t out_step;
  int64_t tap_rows;
  int64_t blocks;  // each of kBlock results
};

// kTaps: taps in a row of the filter. kStep: distance of adjacent results in x if taps are adjacent; 0 if distances are
// known only at run time. kBlock results share each load of a tap and, where they overlap, of x.
template <class S, int kTaps, int kStep, int kBlock>
void row_kernel(const Row<S>& row) {
  constexpr int L = kLanes<S>;
  const int64_t step = kStep > 0 ? kStep * L : row.x_step, tap = kStep > 0 ? L : row.x_tap;
  const S* x_block = row.x;
  S* out = row.out;
  const Vec<S> init = row.init ? load<S>(row.init) : Vec<S>{};
  for (int64_t block = 0; block < row.blocks; ++block) {
    Vec<S> sum[kBlock];
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; ++i) sum[i] = init;
    const S *x = x_block, *w = row.w;
    for (int64_t r = 0; r < row.tap_rows; ++r) {
#pragma GCC unroll 9
      for (int s = 0; s < kTaps; ++s) {
        const Vec<S> factor = load<S>(w + s * row.w_tap);
#pragma GCC unroll 8
        for (int i = 0; i < kBlock; ++i) sum[i] = fma<S>(load<S>(x + i * step + s * tap), factor, sum[i]);
      }
      x += row.x_row;
      w += row.w_row;
    }
    if (!row.init)  // the old value is added last: shorter chains round less
#pragma GCC unroll 8
      for (int i = 0; i < kBlock; ++i) sum[i] = load<S>(out + i * row.out_step) + sum[i];
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; ++i) store<S>(out + i * row.out_step, sum[i]);
    x_block += kBlock * step;
    out += kBlock * row.out_step;
  }
}

template <int kTaps, int kStep, class S>
void row_kernel(const Row<S>& row, int block) {
  if (block == 8) return row_kernel<S, kTaps, kStep, 8>(row);
  if (block == 7) return row_kernel<S, kTaps, kStep, 7>(row);
  return row_kernel<S, kTaps, kStep, 4>(row);
}

}  // namespace reformer::REFORMER_ISA
