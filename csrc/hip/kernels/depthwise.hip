// Depthwise convolution in NHWC: square filters of R x R, strides of 1 or 2, one filter a channel.
//
// A thread computes V neighbouring channels of TW neighbouring columns, and walks down the rows. Every input row is
// loaded once, and adds to all results that it takes part in, whose sums wait in registers; so memory is read about
// (TW + R - 1) / TW times, of which the second time and later ones are served by the cache. The rows of sums are a ring,
// unrolled, so that its indices are known to the compiler.
#include "../device/types.h"
#include "depthwise.h"

namespace reformer {
namespace {

// Where a thread's strip lies.
struct Strip {
  int channel, column, row, picture;
};

template <int V>
DEVICE Strip strip_of(int item, const DepthwiseArgs& p, int columns) {
  const int column = divide_with_rest(item, p.row_strips);  // for the moment: all but the row strip
  Strip strip;
  strip.row = item * p.rows;
  item = column;
  strip.picture = divide_with_rest(item, p.column_strips);
  strip.column = item * columns;
  strip.channel = 0;
  return strip;
}

// One row of TW columns, zeros outside of the picture.
template <class T, int V, int kColumns>
struct Row {
  Pack<T, V> packs[kColumns];

  // row: of the picture, anything; columns: of which bit j says that column j lies in the picture.
  DEVICE void read(const T* picture, int row, int height, int width, int column, int channels, unsigned columns,
                   bool wanted) {
    const bool inside = wanted && unsigned(row) < unsigned(height);
    const T* from = picture + (long long)(row * width + column) * channels;
    UNROLL
    for (int j = 0; j < kColumns; ++j)
      packs[j] = inside && (columns >> j & 1) ? load<T, V>(from + (long long)j * channels) : zero_pack<T, V>();
  }
  DEVICE void get(int j, float (&to)[V]) const { widen<T, V>(packs[j], to); }
};

// Bit j: column + j lies in a picture of this width.
DEVICE unsigned columns_inside(int column, int width, int count) {
  unsigned bits = 0;
  UNROLL
  for (int j = 0; j < count; ++j) bits |= unsigned(column + j) < unsigned(width) ? 1u << j : 0;
  return bits;
}

template <class T, int R, int V>
DEVICE void read_filter(const void* filter, int channel, float (&taps)[R * R][V]) {
  const T* from = static_cast<const T*>(filter) + channel * R * R;
  UNROLL
  for (int v = 0; v < V; ++v) {
    UNROLL
    for (int t = 0; t < R * R; ++t) taps[t][v] = to_float(from[v * R * R + t]);
  }
}
}  // namespace
}  // namespace reformer
