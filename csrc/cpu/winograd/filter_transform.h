// Transforms filters to their points. Computed in fp64 and rounded once, which costs little here and avoids a rounding
// error in every product. Part of an ISA body.

namespace reformer::REFORMER_ISA {

// to[i * to_step + lane] = from[lane * from_row + i] for i < cols; zero in the lanes from `rows` on.
inline void transpose_rows(const float* from, int64_t from_row, int rows, int cols, float* to, int64_t to_step) {
  constexpr int L = kLanes<float>;
  for (int first = 0; first < cols; first += L) {
    const int count = std::min(L, cols - first);
    Vec<float> square[L];
#pragma GCC unroll 16
    for (int lane = 0; lane < L; ++lane)
      square[lane] = lane < rows ? load_part<float>(from + lane * from_row + first, count) : Vec<float>{};
    transpose<float>(square);
    for (int i = 0; i < count; ++i) store<float>(to + (first + i) * to_step, square[i]);
  }
}

// Loads the filters of channels [c, c + depth) for a vector of outputs from k on: taps[channel][tap][lane].
inline void load_taps(const WinogradConfig& p, int k, int c, int depth,
                      float (&taps)[kMaxWinogradChunk][9][kLanes<float>]) {
  constexpr int L = kLanes<float>;
  const int lanes = std::min(L, p.k - k);
  const float* from = p.filter + k * p.filter_k + c * p.filter_c;
  if (p.filter_k == 1) {
    for (int i = 0; i < depth; ++i)
      for (int tap = 0; tap < 9; ++tap)
        store<float>(taps[i][tap], load_part<float>(from + i * p.filter_c + tap * p.filter_tap, lanes));
  } else if (p.filter_c == 1) {
    for (int tap = 0; tap < 9; ++tap)
      transpose_rows(from + tap * p.filter_tap, p.filter_k, lanes, depth, taps[0][tap], 9 * L);
  } else if (p.filter_c == 9) {
    transpose_rows(from, p.filter_k, lanes, depth * 9, taps[0][0], L);
  } else {
    for (int i = 0; i < depth; ++i) transpose_rows(from + i * p.filter_c, p.filter_k, lanes, 9, taps[i][0], L);
  }
}

// Half a vector's number of floats, widened to double.
REFORMER_INLINE Vec<double> load_half(const float* from) {
  typedef float Half __attribute__((vector_size(REFORMER_VECTOR_BYTES / 2)));
  Half half;
  std::memcpy(&half, from, sizeof half);
  return __builtin_convertvector(half, Vec<double>);
}
REFORMER_INLINE void store_half(float* to, Vec<double> v) {
  typedef float Half __attribute__((vector_size(REFORMER_VECTOR_BYTES / 2)));
  const Half half = __builtin_convertvector(v, Half);
  std::memcpy(to, &half, sizeof half);
}

// to: one filter block of the config, [point][channel][panel_cols].
template <int MH, int MW>
void transform_filter(const WinogradConfig& p, int panel, int chunk, float* to) {
  constexpr int L = kLanes<float>, NH = MH + 2, NW = MW + 2;
  alignas(64) float taps[kMaxWinogradChunk][9][L];
  const int depth = p.chunk_depth(chunk);
  for (int col = 0; col < p.panel_width(panel); col += L) {
    load_taps(p, panel * p.panel_cols + col, chunk * p.chunk, depth, taps);
    for (int i = 0; i < depth; ++i)
      for (int half = 0; half < L; half += L / 2) {
        Vec<double> rows[NH][3];
#pragma GCC unroll 3
        for (int s = 0; s < 3; ++s) {
          Vec<double> g[3], points[NH];
#pragma GCC unroll 3
          for (int r = 0; r < 3; ++r) {
            const int tap = r * 3 + s;
            g[r] = load_half(taps[i][p.rotated ? 8 - tap : tap] + half);
          }
          ToomCook<MH>::filter(g, points);
#pragma GCC unroll 6
          for (int r = 0; r < NH; ++r) rows[r][s] = points[r];
        }
#pragma GCC unroll 6
        for (int r = 0; r < NH; ++r) {
          Vec<double> points[NW];
          ToomCook<MW>::filter(rows[r], points);
#pragma GCC unroll 6
          for (int s = 0; s < NW; ++s)
            store_half(to + ((r * NW + s) * p.chunk + i) * int64_t{p.panel_cols} + col + half, points[s]);
        }
      }
  }
}

}  // namespace reformer::REFORMER_ISA
