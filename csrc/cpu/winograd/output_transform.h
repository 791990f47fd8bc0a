// Transforms points to output tiles and adds the bias. Part of an ISA body.

namespace reformer::REFORMER_ISA {

template <int MH>
using OutputStrip = float[MH][kStripCols][kLanes<float>];

// Computes one tile y[row][column] from its points at m, for a vector of channels.
template <int MH, int MW>
REFORMER_INLINE void transform_tile(const float* m, int64_t plane, Vec<float> bias, Vec<float> (&y)[MH][MW]) {
  constexpr int NH = MH + 2, NW = MW + 2;
  Vec<float> rows[MH][NW];
#pragma GCC unroll 6
  for (int j = 0; j < NW; ++j) {
    Vec<float> points[NH], column[MH];
#pragma GCC unroll 6
    for (int i = 0; i < NH; ++i) points[i] = load<float>(m + (i * NW + j) * plane);
    ToomCook<MH>::output(points, column);
#pragma GCC unroll 4
    for (int i = 0; i < MH; ++i) rows[i][j] = column[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < MH; ++i) {
    ToomCook<MW>::output(rows[i], y[i]);
#pragma GCC unroll 4
    for (int j = 0; j < MW; ++j) y[i][j] += bias;
  }
}

// Copies rows of the strip, [column][channel], to rows of `lanes` channels of an image.
template <int MH>
void write_strip_nchw(const WinogradConfig& p, const WinogradRun& run, int64_t k, int lanes, int rows,
                      const OutputStrip<MH>& strip) {
  constexpr int L = kLanes<float>;
  const int64_t left = run.across * p.tile.w;
  const int cols = int(std::min<int64_t>(run.count * p.tile.w, p.out_w - left));
  for (int i = 0; i < rows; ++i)
    for (int col = 0; col < cols; col += L) {
      Vec<float> square[L];
#pragma GCC unroll 16
      for (int lane = 0; lane < L; ++lane) square[lane] = load<float>(static_cast<const float*>(strip[i][col + lane]));
      transpose<float>(square);
      float* to = p.out + ((run.n * p.k + k) * p.out_h + run.down * MH + i) * p.out_w + left + col;
      const int64_t channel = int64_t{p.out_h} * p.out_w;
      const int count = std::min(L, cols - col);
#pragma GCC unroll 16
      for (int lane = 0; lane < L; ++lane)
        if (lane < lanes) {
          if (count == L)
            store<float>(to + lane * channel, square[lane]);
          else
            store_part<float>(to + lane * channel, square[lane], count);
        }
    }
}

// Transforms rows 0, 1, .. of the planes to the tiles [begin, end), for one panel of channels.
template <int MH, int MW>
void transform_output(const WinogradConfig& p, int panel, int64_t begin, int64_t end,
                      const WinogradPlanes<const float>& from) {
  constexpr int L = kLanes<float>;
  alignas(64) OutputStrip<MH> strip;
  for (int lane = 0; lane < p.panel_width(panel); lane += L) {
    const int64_t k = panel * p.panel_cols + lane;
    const int lanes = int(std::min<int64_t>(L, p.k - k));
    const Vec<float> bias = p.bias ? load_part<float>(p.bias + k, lanes) : Vec<float>{};
    for_each_run(p, begin, end, kStripCols / MW, [&](const WinogradRun& run, int64_t index) {
      const int rows = int(std::min<int64_t>(MH, p.out_h - run.down * MH));
      for (int64_t tile = 0; tile < run.count; ++tile) {
        Vec<float> y[MH][MW];
        transform_tile<MH, MW>(from.data + (index + tile) * from.row + lane, from.plane, bias, y);
        if (p.layout == Layout::nchw) {
#pragma GCC unroll 4
          for (int i = 0; i < MH; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < MW; ++j) store<float>(strip[i][tile * MW + j], y[i][j]);
          continue;
        }
        const int64_t left = (run.across + tile) * MW;
        const int cols = int(std::min<int64_t>(MW, p.out_w - left));
        float* to = p.out + ((run.n * p.out_h + run.down * MH) * p.out_w + left) * p.k + k;
#pragma GCC unroll 4
        for (int i = 0; i < MH; ++i)
#pragma GCC unroll 4
          for (int j = 0; j < MW; ++j)
            if (i < rows && j < cols) store_part<float>(to + (int64_t{i} * p.out_w + j) * p.k, y[i][j], lanes);
      }
      if (p.layout == Layout::nchw) write_strip_nchw<MH>(p, run, k, lanes, rows, strip);
    });
  }
}

}  // namespace reformer::REFORMER_ISA
