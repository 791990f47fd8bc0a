// Depthwise convolution in NHWC: square filters of R x R, strides ST of 1 or 2, one filter per channel.
//
// A block copies the source of a tile into shared memory, with all copies in flight at once. A thread computes V
// channels of strips of TW columns and a few rows from registers: each filter row that it loads serves TW columns, and
// each pixel R of them.
#include "../device/add_up.h"
#include "../device/async_copy.h"
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "depthwise.h"
#include "tile_pipeline.h"

namespace reformer {
namespace {

DEVICE constexpr int log_of(int power_of_two) { return power_of_two == 1 ? 0 : 1 + log_of(power_of_two / 2); }

// A part of an image in shared memory, [rows][columns][channels of the block]; zeros outside of the image.
template <class T, int V>
struct Tile {
  T* memory;
  int columns, log_channels;

  // Each thread copies p.copy_bytes of some columns, in all rows or in every n-th row.
  DEVICE void fill(const DepthwiseArgs& p, const T* image, int height, int width, int first, int top, int left,
                   int rows, const Divider& by_places) const {
    const int places = int(by_places.divisor), elements = p.copy_bytes / int(sizeof(T));
    const int shift = log_channels - (elements == 1 ? 0 : elements == 2 ? 1 : elements == 4 ? 2 : 3);
    int place = thread_id();
    const int start = divide_with_rest(place, by_places);
    const int step = places < p.threads ? divide(p.threads, by_places) : 1;
    if (start >= step) return;
    for (; place < places; place += p.threads) {
      const int column = left + (place >> shift), channel = first + (place & ((1 << shift) - 1)) * elements;
      const bool inside = unsigned(column) < unsigned(width) && channel < p.channels;
      const int bottom = inside ? height : 0;
      const T* from =
          image + (inside ? static_cast<long long>((top + start) * width + column) * p.channels + channel : 0);
      const long long from_step = inside ? static_cast<long long>(step * width) * p.channels : 0;
      T* to = memory + (start * places + place) * elements;
      for (int row = start; row < rows; row += step) {
        const bool valid = unsigned(top + row) < unsigned(bottom);
        const T* source = valid ? from : image;
        if (p.copy_bytes == 16)
          async_copy<16>(to, source, valid);
        else if (p.copy_bytes == 8)
          async_copy<8>(to, source, valid);
        else
          async_copy<4>(to, source, valid);
        from += from_step;
        to += step * places * elements;
      }
    }
  }

  template <int kColumns>
  DEVICE void read(int row, int column, int lane, float (&to)[kColumns][V]) const {
    const T* from = memory + ((row * columns + column) << log_channels) + lane * V;
    UNROLL
    for (int j = 0; j < kColumns; ++j) widen<T, V>(load<T, V>(from + (j << log_channels)), to[j]);
  }
};

// Filters in shared memory, fp32 [R * R][pitch].
template <class T, int R, bool kFlipped>
DEVICE void fill_filter(float* to, int pitch, const DepthwiseArgs& p, int first, int channels) {
  constexpr int kBatch = R == 3 ? 5 : 16;  // loads in flight at once
  const T* from = static_cast<const T*>(p.filter) + first * R * R;
  const int count = (p.channels - first < channels ? p.channels - first : channels) * R * R;
  for (int base = thread_id(); base < channels * R * R; base += kBatch * p.threads) {
    float taps[kBatch];
    UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int i = base + b * p.threads;
      taps[b] = i < count ? to_float(from[i]) : 0.0f;
    }
    UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int i = base + b * p.threads, channel = i / (R * R), tap = i % (R * R);
      if (channel < channels) to[(kFlipped ? R * R - 1 - tap : tap) * pitch + channel] = taps[b];
    }
  }
}

template <int R, int V>
DEVICE void read_taps(const float* filter, int r, int pitch, int lane, float (&taps)[R][V]) {
  UNROLL
  for (int s = 0; s < R; ++s) widen<fp32, V>(load<fp32, V>(filter + (r * R + s) * pitch + lane * V), taps[s]);
}

// Where a tile begins.
struct Place {
  int column, row, image;
};
DEVICE Place place_of(int tile, const DepthwiseArgs& p) {
  Place place{tile, 0, 0};
  place.row = divide_with_rest(place.column, p.tiles_across);
  place.image = divide_with_rest(place.row, p.tiles_down);
  place.column *= p.tile_columns;
  place.row *= p.tile_rows;
  return place;
}

// Stores one row of a strip to an image with rows of `width` pixels.
template <class T, int V, int TW>
DEVICE void write(T* image, int row, int column, int height, int width, int channels, const float (&values)[TW][V]) {
  T* to = image + static_cast<long long>(row * width + column) * channels;
  const unsigned end = unsigned(row) < unsigned(height) ? unsigned(width) : 0;
  UNROLL
  for (int j = 0; j < TW; ++j) {
    const Pack<T, V> pack = narrow<T, V>(values[j]);
    if (unsigned(column + j) < end) store<T, V>(to, pack);
    to += channels;
  }
}

// A correlation with stride ST: y[o] = sum over r of x[o * ST + r - pad] * filter[r], likewise for columns. With the
// flipped filter it is the gradient of the correlation with stride 1.
template <class T, int R, int ST, int V, int TW, bool kFlipped>
DEVICE void correlate(const DepthwiseArgs& p, const void* source, int h, int w, int out_h, int out_w, int pad_h,
                      int pad_w) {
  constexpr int kRows = kDepthwiseRows<ST>;
  constexpr int kColumns = (TW - 1) * ST + R;
  DYNAMIC_SHARED(memory);
  const int log_channels = p.log_lanes + log_of(V), channels = 1 << log_channels, first = block_x() * channels;
  const int pitch = depthwise_filter_pitch(channels);
  float* filter = reinterpret_cast<float*>(memory);
  const auto tile_of = [&](int buffer) {
    T* tiles = reinterpret_cast<T*>(filter + R * R * pitch);
    return Tile<T, V>{tiles + (buffer * p.source_rows * p.source_columns << log_channels), p.source_columns,
                      log_channels};
  };
  const int lane = thread_id() & ((1 << p.log_lanes) - 1), channel = first + lane * V;
  const bool idle = channel >= p.channels;
  float bias[V] = {};

  const auto fill = [&](const Place& place, int buffer) {
    tile_of(buffer).fill(p, static_cast<const T*>(source) + static_cast<long long>(place.image) * h * w * p.channels, h,
                         w, first, place.row * ST - pad_h, place.column * ST - pad_w, p.source_rows,
                         p.by_source_places);
  };
  const auto prepare = [&] {
    if (p.bias && !idle) widen<T, V>(load<T, V>(static_cast<const T*>(p.bias) + channel), bias);
    fill_filter<T, R, kFlipped>(filter, pitch, p, first, channels);
  };
  const auto compute = [&](const Place& place, int buffer) {
    const Tile<T, V> tile = tile_of(buffer);
    T* result = static_cast<T*>(p.result) + static_cast<long long>(place.image) * out_h * out_w * p.channels + channel;
    for (int strip = thread_id() >> p.log_lanes; !idle && strip < p.strips; strip += p.threads >> p.log_lanes) {
      int column = strip;
      const int row = divide_with_rest(column, p.by_strips_across) * kRows;
      column *= TW;
      float sums[kRows][TW][V], x[kRows][kColumns][V];
      UNROLL
      for (int o = 0; o < kRows; ++o) {
        UNROLL
        for (int j = 0; j < TW; ++j) {
          UNROLL
          for (int v = 0; v < V; ++v) sums[o][j][v] = bias[v];
        }
      }
      UNROLL
      for (int o = 0; o + 1 < kRows; ++o) tile.read(row * ST + o, column * ST, lane, x[o]);
      UNROLL
      for (int r = 0; r < R; ++r) {
        tile.read(row * ST + r + kRows - 1, column * ST, lane, x[kRows - 1]);
        float taps[R][V];
        read_taps<R, V>(filter, r, pitch, lane, taps);
        UNROLL
        for (int o = 0; o < kRows; ++o) {
          UNROLL
          for (int s = 0; s < R; ++s) {
            UNROLL
            for (int j = 0; j < TW; ++j) {
              UNROLL
              for (int v = 0; v < V; ++v) sums[o][j][v] += x[o][j * ST + s][v] * taps[s][v];
            }
          }
        }
        UNROLL
        for (int o = 0; o + 1 < kRows; ++o) {
          UNROLL
          for (int j = 0; j < kColumns; ++j) {
            UNROLL
            for (int v = 0; v < V; ++v) x[o][j][v] = x[o + 1][j][v];
          }
        }
      }
      UNROLL
      for (int o = 0; o < kRows; ++o)
        write<T, V, TW>(result, place.row + row + o, place.column + column, out_h, out_w, p.channels, sums[o]);
    }
  };
  pipeline_tiles(block_y(), p.tiles, p.splits, [&](int tile) { return place_of(tile, p); }, fill, prepare, compute);
}

template <class T, int R, int ST, int V, int TW>
DEVICE void forward(const DepthwiseArgs& p) {
  correlate<T, R, ST, V, TW, false>(p, p.x, p.h, p.w, p.out_h, p.out_w, p.pad_h, p.pad_w);
}

// Adds dy[q] * filter[r] to dx[q * ST + r - pad] for all r, likewise for columns. A strip is ST rows of TW columns that
// begin where the padded row and column are multiples of ST, so that the taps of each pixel are known at compile time.
template <class T, int R, int ST, int V, int TW>
DEVICE void strided_input_grad(const DepthwiseArgs& p) {
  static_assert(TW % ST == 0);
  constexpr int kBefore = (R - 1) / ST;  // rows of y before the strip's first one that also contribute to it
  constexpr int kColumns = kBefore + (TW - 1) / ST + 1;
  DYNAMIC_SHARED(memory);
  const int log_channels = p.log_lanes + log_of(V), channels = 1 << log_channels, first = block_x() * channels;
  const int pitch = depthwise_filter_pitch(channels);
  float* filter = reinterpret_cast<float*>(memory);
  const auto tile_of = [&](int buffer) {
    T* tiles = reinterpret_cast<T*>(filter + R * R * pitch);
    return Tile<T, V>{tiles + (buffer * p.source_rows * p.source_columns << log_channels), p.source_columns,
                      log_channels};
  };
  const int lane = thread_id() & ((1 << p.log_lanes) - 1), channel = first + lane * V;

  const auto fill = [&](const Place& place, int buffer) {
    const T* y = static_cast<const T*>(p.y) + static_cast<long long>(place.image) * p.out_h * p.out_w * p.channels;
    tile_of(buffer).fill(p, y, p.out_h, p.out_w, first, (place.row + p.pad_h) / ST - kBefore,
                         (place.column + p.pad_w) / ST - kBefore, p.source_rows, p.by_source_places);
  };
  const auto prepare = [&] { fill_filter<T, R, false>(filter, pitch, p, first, channels); };
  const auto compute = [&](const Place& place, int buffer) {
    const Tile<T, V> tile = tile_of(buffer);
    T* result = static_cast<T*>(p.result) + static_cast<long long>(place.image) * p.h * p.w * p.channels + channel;
    const bool idle = channel >= p.channels;
    for (int strip = thread_id() >> p.log_lanes; !idle && strip < p.strips; strip += p.threads >> p.log_lanes) {
      int column = strip;
      const int row = divide_with_rest(column, p.by_strips_across) * ST;
      column *= TW;
      float sums[ST][TW][V] = {};
      UNROLL
      for (int back = 0; back <= kBefore; ++back) {
        float y[kColumns][V];
        tile.read(row / ST + kBefore - back, column / ST, lane, y);
        UNROLL
        for (int u = 0; u < ST; ++u) {
          const int r = back * ST + u;
          if (r >= R) continue;
          float taps[R][V];
          read_taps<R, V>(filter, r, pitch, lane, taps);
          UNROLL
          for (int j = 0; j < TW; ++j) {
            UNROLL
            for (int s = j % ST; s < R; s += ST) {
              UNROLL
              for (int v = 0; v < V; ++v) sums[u][j][v] += y[(j - s) / ST + kBefore][v] * taps[s][v];
            }
          }
        }
      }
      UNROLL
      for (int u = 0; u < ST; ++u)
        write<T, V, TW>(result, place.row - p.pad_h % ST + row + u, place.column - p.pad_w % ST + column, p.h, p.w,
                        p.channels, sums[u]);
    }
  };
  pipeline_tiles(block_y(), p.tiles, p.splits, [&](int tile) { return place_of(tile, p); }, fill, prepare, compute);
}

template <class T, int R, int ST, int V, int TW>
DEVICE void input_grad(const DepthwiseArgs& p) {
  if constexpr (ST == 1)
    correlate<T, R, 1, V, TW, true>(p, p.y, p.out_h, p.out_w, p.h, p.w, R - 1 - p.pad_h, R - 1 - p.pad_w);
  else
    strided_input_grad<T, R, ST, V, TW>(p);
}

// dw[r] = sum over o of y[o] * x[o * ST + r - pad], likewise for columns. Each block sums a part of the tiles; parts
// and order are fixed.
template <class T, int R, int ST, int V, int TW>
DEVICE void weight_grad(const DepthwiseArgs& p) {
  constexpr int kRows = kDepthwiseRows<ST>;
  constexpr int kColumns = (TW - 1) * ST + R;
  DYNAMIC_SHARED(memory);
  const int log_channels = p.log_lanes + log_of(V), first = block_x() << log_channels;
  const int x_pixels = p.source_rows * p.source_columns, pixels = x_pixels + p.tile_rows * p.tile_columns;
  const auto x_tile_of = [&](int buffer) {
    return Tile<T, V>{reinterpret_cast<T*>(memory) + (buffer * pixels << log_channels), p.source_columns, log_channels};
  };
  const auto y_tile_of = [&](int buffer) {
    return Tile<T, V>{x_tile_of(buffer).memory + (x_pixels << log_channels), p.tile_columns, log_channels};
  };
  const int lane = thread_id() & ((1 << p.log_lanes) - 1), worker = thread_id() >> p.log_lanes;

  float sums[R * R][V] = {};
  const auto fill = [&](const Place& place, int buffer) {
    const long long images = static_cast<long long>(place.image) * p.channels;
    x_tile_of(buffer).fill(p, static_cast<const T*>(p.x) + images * p.h * p.w, p.h, p.w, first,
                           place.row * ST - p.pad_h, place.column * ST - p.pad_w, p.source_rows, p.by_source_places);
    y_tile_of(buffer).fill(p, static_cast<const T*>(p.y) + images * p.out_h * p.out_w, p.out_h, p.out_w, first,
                           place.row, place.column, p.tile_rows, p.by_tile_places);
  };
  const auto compute = [&](const Place&, int buffer) {
    const Tile<T, V> x_tile = x_tile_of(buffer), y_tile = y_tile_of(buffer);
    for (int strip = worker; strip < p.strips; strip += p.threads >> p.log_lanes) {
      int column = strip;
      const int row = divide_with_rest(column, p.by_strips_across) * kRows;
      column *= TW;
      float y[kRows][TW][V];
      UNROLL
      for (int o = 0; o < kRows; ++o) y_tile.read(row + o, column, lane, y[o]);
      UNROLL
      for (int i = 0; i < (kRows - 1) * ST + R; ++i) {
        float x[kColumns][V];
        x_tile.read(row * ST + i, column * ST, lane, x);
        UNROLL
        for (int o = 0; o < kRows; ++o) {
          const int r = i - o * ST;
          if (r < 0 || r >= R) continue;
          UNROLL
          for (int s = 0; s < R; ++s) {
            UNROLL
            for (int v = 0; v < V; ++v) {
              UNROLL
              for (int j = 0; j < TW; ++j) sums[r * R + s][v] += x[j * ST + s][v] * y[o][j][v];
            }
          }
        }
      }
    }
  };
  pipeline_tiles(block_y(), p.tiles, p.splits, [&](int tile) { return place_of(tile, p); }, fill, [] {}, compute);

  // Adds up the workers' sums, halving their number each time.
  float* shared = reinterpret_cast<float*>(memory);
  for (int half = p.threads / 2; half >> p.log_lanes; half /= 2) {
    barrier();
    const int to = thread_id() - half;
    if (to >= 0 && to < half) {
      UNROLL
      for (int t = 0; t < R * R; ++t) {
        UNROLL
        for (int v = 0; v < V; ++v) shared[(t * V + v) * half + to] = sums[t][v];
      }
    }
    barrier();
    if (thread_id() < half) {
      UNROLL
      for (int t = 0; t < R * R; ++t) {
        UNROLL
        for (int v = 0; v < V; ++v) sums[t][v] += shared[(t * V + v) * half + thread_id()];
      }
    }
  }
  const int channel = first + lane * V;
  if (worker || channel >= p.channels) return;
  float* result = static_cast<float*>(p.result) + static_cast<long long>(block_y()) * R * R * p.channels + channel;
  UNROLL
  for (int t = 0; t < R * R; ++t) store<fp32, V>(result + t * p.channels, narrow<fp32, V>(sums[t]));
}

// Adds up the parts of the sums, p.x, for kDepthwiseFinishOutputs adjacent elements of the filter per block.
template <class T, int, int, int, int>
DEVICE void finish(const DepthwiseArgs& p) {
  constexpr int kWorkers = kDepthwiseThreads_finish / kDepthwiseFinishOutputs;
  SHARED float shared[kWorkers][kDepthwiseFinishOutputs];
  const int worker = thread_id() / kDepthwiseFinishOutputs, output = thread_id() % kDepthwiseFinishOutputs;
  const int element = block_x() * kDepthwiseFinishOutputs + output, elements = p.taps * p.channels;
  float sum[1] = {};
  grid_dependency_wait();
  if (element < elements) add_up(static_cast<const float*>(p.x) + element, elements, worker, kWorkers, p.splits, sum);
  shared[worker][output] = sum[0];
  barrier();
  if (worker || element >= elements) return;
  for (int other = 1; other < kWorkers; ++other) sum[0] += shared[other][output];
  T value;
  from_float(sum[0], value);
  static_cast<T*>(p.result)[element % p.channels * p.taps + element / p.channels] = value;
}

}  // namespace
}  // namespace reformer

#define X(what, T, R, ST, V, TW)                                                   \
  KERNEL(reformer::kDepthwiseThreads_##what)                                       \
  depthwise_##what##_##T##_##R##_##ST##_##V##_##TW(reformer::DepthwiseArgs args) { \
    reformer::grid_dependency_launch();                                            \
    reformer::what<reformer::T, R, ST, V, TW>(args);                               \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "depthwise.inc"
#endif
