// The register block of weight_grad: dot products of a few channels of dy with a few shifted planes of x; lanes are
// added up only at the end. No include guard: part of an ISA body.
namespace reformer::REFORMER_ISA {

#if defined(REFORMER_ISA_AVX512)
constexpr int kDotRows = 4, kDotCols = 6;
#else
constexpr int kDotRows = 2, kDotCols = 5;
#endif

// Adds up the lanes pairwise, halving the vector by shuffles: taking the address of an accumulator would keep all of
// them in memory.
template <class S, int LANES = kLanes<S>, class V>
REFORMER_INLINE S sum_lanes(V v);

template <class S, class V, int... I>
REFORMER_INLINE S sum_halves(V v, std::integer_sequence<int, I...>) {
  constexpr int half = int{sizeof...(I)};
  return sum_lanes<S, half>(__builtin_shufflevector(v, v, I...) + __builtin_shufflevector(v, v, (half + I)...));
}

template <class S, int LANES, class V>
REFORMER_INLINE S sum_lanes(V v) {
  if constexpr (LANES == 2)
    return v[0] + v[1];
  else
    return sum_halves<S>(v, std::make_integer_sequence<int, LANES / 2>());
}

template <class S, int ROWS, int COLS>
void direct_dots(const DirectDots<S>& t) {
  constexpr int L = kLanes<S>;
  Vec<S> sum[ROWS][COLS] = {};
  const S* row[ROWS];
  const S* plane[COLS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m) row[m] = t.rows + m * t.row_step;
#pragma GCC unroll 8
  for (int d = 0; d < COLS; ++d) plane[d] = t.planes + t.offsets[d];

  for (int32_t strip = 0; strip < t.strips; ++strip) {
    const int64_t from = strip * t.planes_strip - strip * t.rows_strip;
    for (int64_t q = strip * t.rows_strip, end = q + t.vectors * L; q < end; q += L) {
      Vec<S> a[ROWS];
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; ++m) a[m] = load<S>(row[m] + q);
#pragma GCC unroll 8
      for (int d = 0; d < COLS; ++d) {
        const Vec<S> b = load<S>(plane[d] + from + q);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; ++m) sum[m][d] = fma<S>(a[m], b, sum[m][d]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
    for (int d = 0; d < COLS; ++d) t.sums[m * t.sums_row + d] += sum_lanes<S>(sum[m][d]);
}

}  // namespace reformer::REFORMER_ISA
