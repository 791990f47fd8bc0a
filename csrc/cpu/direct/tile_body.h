// The register tile of forward and input_grad: a few channels of the target x vectors of consecutive positions. No
// include guard: part of an ISA body. All loops over registers are unrolled; otherwise registers would be spilled to
// memory.
namespace reformer::REFORMER_ISA {

// Accumulators, a row of planes and one weight fill the registers.
#if defined(REFORMER_ISA_AVX512)
using DirectTileRows = std::integer_sequence<int, 1, 2, 3, 4, 8>;
constexpr int direct_vectors(int rows) { return std::min(8, 24 / rows); }
#elif defined(REFORMER_ISA_AVX2)
using DirectTileRows = std::integer_sequence<int, 1, 2, 3, 4>;
constexpr int direct_vectors(int rows) { return std::min(6, 12 / rows); }
#else
using DirectTileRows = std::integer_sequence<int, 1, 2, 3, 4>;
constexpr int direct_vectors(int rows) { return std::min(4, 8 / rows); }
#endif

template <class S, int ROWS, int VECTORS>
void direct_tile(const DirectTile<S>& t) {
  constexpr int L = kLanes<S>;
  Vec<S> sum[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) sum[m][v] = broadcast(t.bias ? t.bias[m] : S(0));

  const S* weights = t.weights;
  const int32_t* offset = t.offsets;
  add_in_runs<run_length(ROWS, VECTORS)>(sum, t.depth, [&](int64_t depth) {
    for (const int32_t* const end = offset + depth; offset < end; ++offset) {
      const S* plane = t.planes + *offset;
      Vec<S> row[VECTORS];
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) row[v] = load<S>(plane + v * L);
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; ++m) {
        const Vec<S> weight = broadcast(weights[m]);
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) sum[m][v] = fma<S>(weight, row[v], sum[m][v]);
      }
      weights += ROWS;
    }
  });

  const int last = t.cols - (VECTORS - 1) * L;  // columns of the last vector
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m) {
    S* to = t.out + m * t.out_row;
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS - 1; ++v) store<S>(to + v * L, sum[m][v]);
    if (last < L)
      store_part<S>(to + (VECTORS - 1) * L, sum[m][VECTORS - 1], last);
    else
      store<S>(to + (VECTORS - 1) * L, sum[m][VECTORS - 1]);
  }
}

}  // namespace reformer::REFORMER_ISA
