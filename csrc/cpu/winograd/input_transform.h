// Transforms input tiles to their points, with channels in the lanes. Part of an ISA body.
//
// A run of tiles is first transformed along its columns, into a strip that neighbouring tiles share, and then along its
// rows, tile by tile. NHWC has the channels side by side; NCHW does the first step with columns in the lanes and
// transposes the result. Elements outside the image are zero.

namespace reformer::REFORMER_ISA {

constexpr int kStripCols = 64;  // a strip of 6 rows fits the first-level cache

template <int NH>
using Strip = float[NH][kStripCols][kLanes<float>];

// Loads lanes [begin, end) of the vector at from + first; the others are zero, and their memory is not accessed.
REFORMER_INLINE Vec<float> load_between(const float* from, int64_t first, int begin, int end) {
  constexpr int L = kLanes<float>;
  if (begin == 0) return end == L ? load<float>(from + first) : load_part<float>(from + first, end);
#if defined(REFORMER_ISA_AVX512)
  return (Vec<float>)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << end) - (1u << begin)), from + first);
#else
  float lanes[L] = {};
  for (int i = begin; i < end; ++i) lanes[i] = from[first + i];
  return load<float>(static_cast<const float*>(lanes));
#endif
}

template <int MH>
void fill_strip_nhwc(const WinogradConfig& p, const WinogradRun& run, int64_t c, int lanes, Strip<MH + 2>& strip) {
  constexpr int NH = MH + 2;
  alignas(64) static constexpr float zeros[kLanes<float>] = {};
  const float* row[NH];  // rows of the image, or of a shared buffer of zeros
  int64_t step[NH];
  for (int i = 0; i < NH; ++i) {
    const int64_t h = run.down * MH - p.pad_h + i;
    const bool inside = h >= 0 && h < p.h;
    row[i] = inside ? p.in + (run.n * p.h + h) * p.w * p.c + c : zeros;
    step[i] = inside ? p.c : 0;
  }
  const int cols = int(run.count) * p.tile.w + 2;
  for (int col = 0; col < cols; ++col) {
    const int64_t w = run.across * p.tile.w - p.pad_w + col;
    Vec<float> x[NH] = {}, points[NH];
    if (w >= 0 && w < p.w)
#pragma GCC unroll 6
      for (int i = 0; i < NH; ++i) x[i] = load_between(row[i] + w * step[i], 0, 0, lanes);
    ToomCook<MH>::input(x, points);
#pragma GCC unroll 6
    for (int i = 0; i < NH; ++i) store<float>(strip[i][col], points[i]);
  }
}

template <int MH>
void fill_strip_nchw(const WinogradConfig& p, const WinogradRun& run, int64_t c, int lanes, Strip<MH + 2>& strip) {
  constexpr int NH = MH + 2, L = kLanes<float>;
  const int64_t top = run.down * MH - p.pad_h;
  const int row_begin = int(std::max<int64_t>(0, -top)), row_end = int(std::min<int64_t>(NH, p.h - top));
  const int cols = int(run.count) * p.tile.w + 2;
  for (int col = 0; col < cols; col += L) {
    const int64_t w = run.across * p.tile.w - p.pad_w + col;
    const int begin = int(std::clamp<int64_t>(-w, 0, L)), end = int(std::clamp<int64_t>(p.w - w, begin, L));
    alignas(64) float columns[NH][L][L];  // [point][channel][column]
    for (int lane = 0; lane < L; ++lane) {
      Vec<float> x[NH] = {}, points[NH];
      if (lane < lanes) {
        const float* image = p.in + ((run.n * p.c + c + lane) * p.h + top) * p.w;
#pragma GCC unroll 6
        for (int i = 0; i < NH; ++i)
          if (i >= row_begin && i < row_end) x[i] = load_between(image + i * p.w, w, begin, end);
      }
      ToomCook<MH>::input(x, points);
#pragma GCC unroll 6
      for (int i = 0; i < NH; ++i) store<float>(columns[i][lane], points[i]);
    }
    for (int i = 0; i < NH; ++i) {
      Vec<float> square[L];
#pragma GCC unroll 16
      for (int lane = 0; lane < L; ++lane) square[lane] = load<float>(static_cast<const float*>(columns[i][lane]));
      transpose<float>(square);
#pragma GCC unroll 16
      for (int lane = 0; lane < L; ++lane) store<float>(strip[i][col + lane], square[lane]);
    }
  }
}

// Transforms one chunk of channels of the tiles [begin, end), to rows 0, 1, .. of the planes.
template <int MH, int MW>
void transform_input(const WinogradConfig& p, int chunk, int64_t begin, int64_t end, const WinogradPlanes<float>& to) {
  constexpr int L = kLanes<float>, NH = MH + 2, NW = MW + 2;
  alignas(64) Strip<NH> strip;
  for (int lane = 0; lane < p.chunk_depth(chunk); lane += L) {
    const int c = chunk * p.chunk + lane, lanes = std::min(L, p.c - c);
    for_each_run(p, begin, end, (kStripCols - 2) / MW, [&](const WinogradRun& run, int64_t index) {
      if (p.layout == Layout::nhwc)
        fill_strip_nhwc<MH>(p, run, c, lanes, strip);
      else
        fill_strip_nchw<MH>(p, run, c, lanes, strip);
      for (int64_t tile = 0; tile < run.count; ++tile) {
        float* at = to.data + (index + tile) * to.row + lane;
#pragma GCC unroll 6
        for (int i = 0; i < NH; ++i) {
          Vec<float> x[NW], points[NW];
#pragma GCC unroll 6
          for (int j = 0; j < NW; ++j) x[j] = load<float>(static_cast<const float*>(strip[i][tile * MW + j]));
          ToomCook<MW>::input(x, points);
#pragma GCC unroll 6
          for (int j = 0; j < NW; ++j) store<float>(at + (i * NW + j) * to.plane, points[j]);
        }
      }
    });
  }
}

}  // namespace reformer::REFORMER_ISA
