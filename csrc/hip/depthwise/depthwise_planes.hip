// Depthwise convolution in NCHW: square filters of R x R, strides ST of 1 or 2, one filter per channel.
//
// A block copies adjacent planes, or a band of one plane, into shared memory, where every row begins at a wide word,
// with zeros beside it, whatever its alignment in memory. A thread computes strips of TR x TW results of one plane,
// whose filter stays in registers. Each row that it reads, by wide words, serves up to R rows of the strip.
#include "../device/async_copy.h"
#include "../device/types.h"
#include "../device/warp.h"
#include "depthwise_planes.h"
#include "tile_pipeline.h"

namespace reformer {
namespace {

DEVICE constexpr int next_power_of_two(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}
DEVICE constexpr int less_of(int a, int b) { return a < b ? a : b; }

// Calls visit(place, row, step) for all places of a row that belong to this thread, in rows row, row + step, ...
template <class Visit>
DEVICE void for_each_place(const Divider& by_places, int threads, const Visit& visit) {
  const int places = int(by_places.divisor);
  int place = thread_id();
  const int row = divide_with_rest(place, by_places), step = places < threads ? divide(threads, by_places) : 1;
  if (row >= step) return;
  for (; place < places; place += threads) visit(place, row, step);
}

// Copies every step-th of `rows` rows; all loads of a batch come before its first store. For elements that are too
// narrow for async_copy.
template <class T, class Step>
DEVICE void copy_elements(T* to, int to_step, const T* from, Step from_step, int row, int rows, int step) {
  constexpr int kBatch = 8;
  for (; row < rows; row += kBatch * step) {
    T values[kBatch];
    UNROLL
    for (int b = 0; b < kBatch; ++b) {
      if (row + b * step < rows) values[b] = from[b * from_step];
    }
    UNROLL
    for (int b = 0; b < kBatch; ++b) {
      if (row + b * step < rows) to[b * to_step] = values[b];
    }
    from += kBatch * from_step;
    to += kBatch * to_step;
  }
}

template <int kBytes, class T>
DEVICE void copy_words(T* to, int to_step, const T* from, long long from_step, int row, int rows, int step) {
  constexpr int kBatch = 4;  // constant, so that the loop is unrolled
  for (; row + (kBatch - 1) * step < rows; row += kBatch * step) {
    UNROLL
    for (int b = 0; b < kBatch; ++b) async_copy<kBytes>(to + b * to_step, from + b * from_step, true);
    from += kBatch * from_step;
    to += kBatch * to_step;
  }
  NOT_UNROLLED
  for (; row < rows; row += step) {
    async_copy<kBytes>(to, from, true);
    from += from_step;
    to += to_step;
  }
}

// Copies a contiguous run of bytes.
template <int kBytes>
DEVICE void copy_run(unsigned char* to, const unsigned char* from, int bytes, int threads) {
  for (int i = thread_id() * kBytes; i < bytes; i += threads * kBytes) async_copy<kBytes>(to + i, from + i, true);
}

template <int kBytes, class T>
DEVICE void clear_words(T* to, int to_step, int row, int rows, int step) {
  for (; row < rows; row += step, to += to_step) *reinterpret_cast<Words<kBytes>*>(to) = Words<kBytes>{};
}

// The `band_rows` rows of a plane that begin at `top`.
struct Band {
  int top, rows;
};
DEVICE Band band_of(const PlaneTile& tile, int band) {
  const int begin = tile.first + band * tile.step, end = less_of(begin + tile.band_rows, tile.h);
  const int top = begin < 0 ? 0 : begin;
  return {top, end < top ? 0 : end - top};
}

// The block's tiles of one tensor in shared memory.
template <class T>
struct Tiles {
  const PlaneTile& shape;
  int threads, buffers;
  unsigned char* shared;

  DEVICE T* memory() const { return reinterpret_cast<T*>(shared + shape.offset); }
  DEVICE unsigned char* run(int buffer) const { return shared + shape.run_offset + buffer * shape.run_size; }
  // Number of tiles in their final places at the same time: runs share one place.
  DEVICE int places() const { return shape.run_bytes ? 1 : buffers; }
  DEVICE int place_of(int buffer) const { return shape.run_bytes ? 0 : buffer; }

  // Zeroes the elements beside and after the planes' rows. Nothing else is ever written there.
  DEVICE void clear_margins() const {
    const int rows = places() * shape.rows, elements = shape.copy_bytes / int(sizeof(T));
    for (int i = thread_id(); i < shape.zeros; i += threads) memory()[rows * shape.pitch + i] = T{};
    if (shape.pitch == shape.w) return;
    for_each_place(shape.by_margins, threads, [&](int place, int row, int step) {
      const int column = place * elements < shape.origin ? place * elements : place * elements + shape.w;
      T* to = memory() + row * shape.pitch + column;
      if (shape.copy_bytes == 16)
        clear_words<16>(to, step * shape.pitch, row, rows, step);
      else if (shape.copy_bytes == 8)
        clear_words<8>(to, step * shape.pitch, row, rows, step);
      else if (shape.copy_bytes == 4)
        clear_words<4>(to, step * shape.pitch, row, rows, step);
      else
        clear_words<int(sizeof(T))>(to, step * shape.pitch, row, rows, step);
    });
  }

  // Copies `planes` planes from `plane` on.
  DEVICE void fill(const void* tensor, long long plane, int planes, int band_index, int buffer) const {
    const Band band = band_of(shape, band_index);
    const int rows = planes * band.rows, elements = shape.copy_bytes / int(sizeof(T));
    const T* source = static_cast<const T*>(tensor) + (plane * shape.h + band.top) * shape.w;
    if (shape.run_bytes) {
      const unsigned char* from = reinterpret_cast<const unsigned char*>(source);
      const int bytes = rows * shape.w * int(sizeof(T));
      if (shape.run_bytes == 16)
        copy_run<16>(run(buffer), from, bytes, threads);
      else if (shape.run_bytes == 8)
        copy_run<8>(run(buffer), from, bytes, threads);
      else
        copy_run<4>(run(buffer), from, bytes, threads);
      return;
    }
    T* tile = memory() + buffer * shape.rows * shape.pitch + shape.origin;
    for_each_place(shape.by_copies, threads, [&](int place, int row, int step) {
      const T* from = source + static_cast<long long>(row) * shape.w + place * elements;
      T* to = tile + row * shape.pitch + place * elements;
      const long long from_step = static_cast<long long>(step) * shape.w;
      if (shape.copy_bytes == 16)
        copy_words<16>(to, step * shape.pitch, from, from_step, row, rows, step);
      else if (shape.copy_bytes == 8)
        copy_words<8>(to, step * shape.pitch, from, from_step, row, rows, step);
      else if (shape.copy_bytes == 4)
        copy_words<4>(to, step * shape.pitch, from, from_step, row, rows, step);
      else
        copy_elements(to, step * shape.pitch, from, from_step, row, rows, step);
    });
  }

  // Moves the rows that fill() copied as runs to their places. Barriers are needed before and after.
  DEVICE void spread(int planes, int band_index, int buffer) const {
    const int rows = planes * band_of(shape, band_index).rows;
    const T* from = reinterpret_cast<const T*>(run(buffer));
    T* to = memory() + shape.origin;
    for_each_place(shape.by_copies, threads, [&](int place, int row, int step) {
      copy_elements(to + row * shape.pitch + place, step * shape.pitch, from + row * shape.w + place, step * shape.w,
                    row, rows, step);
    });
  }
};

// Rows of windows at one column of one plane.
template <class T>
struct Windows {
  const T* memory;  // where the window's body is in the first row of shared memory, or would be
  int pitch, row, rows, first, zeros;

  // `column`: where the body begins; `row_of_plane`: the row of the plane in which the first window begins.
  DEVICE Windows(const Tiles<T>& tiles, const Band& band, int buffer, int plane, int row_of_plane, int column)
      : memory(tiles.memory() + column),
        pitch(tiles.shape.pitch),
        row(row_of_plane - band.top),
        rows(band.rows),
        first((tiles.place_of(buffer) * tiles.shape.rows + plane * band.rows) * pitch),
        zeros(tiles.places() * tiles.shape.rows * pitch) {}

  // Reads kColumns elements of row i, of which kHead are before the body of kBody. Reads whole words, and thus more
  // elements.
  template <int kHead, int kBody, int kColumns>
  DEVICE void read(int i, float (&to)[kColumns]) const {
    constexpr int kWord = less_of(kBody, 16 / int(sizeof(T)));
    const T* from = memory + (unsigned(row + i) < unsigned(rows) ? first + (row + i) * pitch : zeros);
    if constexpr (kHead > 0) {
      constexpr int kPack = next_power_of_two(kHead);
      float head[kPack];
      widen<T, kPack>(load<T, kPack>(from - kPack), head);
      UNROLL
      for (int j = 0; j < kHead; ++j) to[j] = head[kPack - kHead + j];
    }
    UNROLL
    for (int part = 0; part < kBody; part += kWord) {
      float body[kWord];
      widen<T, kWord>(load<T, kWord>(from + part), body);
      UNROLL
      for (int j = 0; j < kWord; ++j) {
        if (kHead + part + j < kColumns) to[kHead + part + j] = body[j];
      }
    }
    if constexpr (kColumns > kHead + kBody) {
      constexpr int kTail = kColumns - kHead - kBody, kPack = next_power_of_two(kTail);
      float tail[kPack];
      widen<T, kPack>(load<T, kPack>(from + kBody), tail);
      UNROLL
      for (int j = 0; j < kTail; ++j) to[kHead + kBody + j] = tail[j];
    }
  }
};

// The image and the band of a tile.
struct TilePlace {
  int image, band;
};
DEVICE TilePlace place_of(int tile, const DepthwisePlanesArgs& p) {
  TilePlace place{0, tile};
  place.image = divide_with_rest(place.band, p.by_bands);
  return place;
}

// A thread's work: a plane and its strips. Some threads are idle.
struct Worker {
  int first, planes;  // the block's planes; the last block has fewer
  int plane, strip;   // this thread's plane within the block, and its first strip
  bool idle;
};
DEVICE Worker worker_of(const DepthwisePlanesArgs& p) {
  Worker worker{block_x() * p.planes, 0, 0, thread_id(), false};
  worker.planes = less_of(p.planes, p.channels - worker.first);
  worker.plane = divide_with_rest(worker.strip, p.by_workers);
  worker.idle = worker.plane >= worker.planes;
  return worker;
}

// Where a strip's results belong in the rows [first, end), of `width` elements, of a plane.
struct StripPlace {
  int row, column, first, end, width;
};

// Stores a strip whose columns are all inside of the plane; its last rows may be outside.
template <class T, int TR, int TW>
DEVICE void write_words(T* plane, const StripPlace& place, const float (&values)[TR][TW]) {
  constexpr int kWord = less_of(TW, 16 / int(sizeof(T)));
  UNROLL
  for (int o = 0; o < TR; ++o) {
    T* to = plane + (place.row + o - place.first) * place.width + place.column;
    if (place.row + o < place.first || place.row + o >= place.end) continue;
    UNROLL
    for (int j = 0; j < TW; j += kWord) {
      float word[kWord];
      UNROLL
      for (int k = 0; k < kWord; ++k) word[k] = values[o][j + k];
      store_global<T, kWord>(to + j, narrow<T, kWord>(word));
    }
  }
}

// Stores any strip by accesses of N adjacent elements, each of which is entirely inside or outside.
template <int N, class T, int TR, int TW>
DEVICE void write_elements(T* plane, const StripPlace& place, const float (&values)[TR][TW]) {
  bool inside[TW];
  UNROLL
  for (int j = 0; j < TW; j += N) inside[j] = unsigned(place.column + j) < unsigned(place.width);
  UNROLL
  for (int o = 0; o < TR; ++o) {
    T* to = plane + (place.row + o - place.first) * place.width + place.column;
    if (place.row + o < place.first || place.row + o >= place.end) continue;
    UNROLL
    for (int j = 0; j < TW; j += N) {
      float pack[N];
      UNROLL
      for (int k = 0; k < N; ++k) pack[k] = values[o][j + k];
      if (inside[j]) store<T, N>(to + j, narrow<T, N>(pack));
    }
  }
}

template <int kBytes>
DEVICE void store_words(unsigned char* to, const unsigned char* from, long long bytes, int threads) {
  for (long long i = thread_id() * kBytes; i < bytes; i += threads * kBytes)
    *reinterpret_cast<Words<kBytes>*>(to + i) = *reinterpret_cast<const Words<kBytes>*>(from + i);
}

// Computes results from the source and a filter: forward, or input_grad if kGrad.
template <class T, int R, int ST, bool kGrad, int TR, int TW>
DEVICE void compute_strips(const DepthwisePlanesArgs& p) {
  constexpr int kRows = planes_window(R, ST, kGrad, TR), kColumns = planes_window(R, ST, kGrad, TW);
  constexpr int kBody = planes_step(ST, kGrad, TW), kHead = planes_head(R, ST, kGrad);
  DYNAMIC_SHARED(memory);
  const Worker worker = worker_of(p);
  const Tiles<T> tiles{p.source_tile, p.threads, p.splits < p.tiles ? 2 : 1, memory};
  T* stage = reinterpret_cast<T*>(memory + p.store_offset);

  float taps[R * R], bias = 0;
  const auto fill = [&](const TilePlace& place, int buffer) {
    tiles.fill(p.source, static_cast<long long>(place.image) * p.channels + worker.first, worker.planes, place.band,
               buffer);
  };
  const auto compute = [&](const TilePlace& tile, int buffer) {
    const Band band = band_of(p.source_tile, tile.band);
    const long long first_plane = static_cast<long long>(tile.image) * p.channels + worker.first;
    const int begin = tile.band * p.rows_down - p.shift_h, top = begin < 0 ? 0 : begin;
    const int band_rows = less_of(begin + p.rows_down, p.h) - top;
    T* result = static_cast<T*>(p.result) + (first_plane * p.h + top) * p.w;
    if (p.source_tile.run_bytes) {
      tiles.spread(worker.planes, tile.band, buffer);
      barrier();
    }

    for (int strip = worker.strip; !worker.idle && strip < p.strips; strip += p.workers) {
      int across = strip;
      const int down = tile.band * p.strips_down + divide_with_rest(across, p.by_across);
      const Windows<T> windows(tiles, band, buffer, worker.plane, down * planes_step(ST, kGrad, TR) + p.first_row,
                               across * kBody + planes_margin(sizeof(T)));
      float sums[TR][TW];
      UNROLL
      for (int o = 0; o < TR; ++o) {
        UNROLL
        for (int j = 0; j < TW; ++j) sums[o][j] = bias;
      }
      UNROLL
      for (int i = 0; i < kRows; ++i) {
        float x[kColumns];
        windows.template read<kHead, kBody>(i, x);
        UNROLL
        for (int o = 0; o < TR; ++o) {
          const int r = planes_tap(R, ST, kGrad, i, o);
          if (r < 0 || r >= R) continue;
          UNROLL
          for (int c = 0; c < kColumns; ++c) {
            UNROLL
            for (int j = 0; j < TW; ++j) {
              const int s = planes_tap(R, ST, kGrad, c, j);
              if (s >= 0 && s < R) sums[o][j] += x[c] * taps[r * R + s];
            }
          }
        }
      }
      const StripPlace place{down * TR - p.shift_h, across * TW - p.shift_w, top, top + band_rows, p.w};
      if (p.store == PlaneStore::strips)
        write_words<T, TR, TW>(result + static_cast<long long>(worker.plane) * p.h * p.w, place, sums);
      else if (p.store == PlaneStore::elements)
        write_elements<1, T, TR, TW>(stage + worker.plane * band_rows * p.w, place, sums);
      else if constexpr (sizeof(T) == 2)
        write_elements<2, T, TR, TW>(stage + worker.plane * band_rows * p.w, place, sums);
    }
    if (p.store == PlaneStore::strips) return;
    barrier();
    const long long bytes = static_cast<long long>(worker.planes) * band_rows * p.w * int(sizeof(T));
    unsigned char* to = reinterpret_cast<unsigned char*>(result);
    const unsigned char* from = memory + p.store_offset;
    if (p.store_bytes == 16)
      store_words<16>(to, from, bytes, p.threads);
    else if (p.store_bytes == 8)
      store_words<8>(to, from, bytes, p.threads);
    else if (p.store_bytes == 4)
      store_words<4>(to, from, bytes, p.threads);
    else
      store_words<2>(to, from, bytes, p.threads);
  };
  const auto prepare = [&] {
    const int channel = worker.idle ? worker.first : worker.first + worker.plane;
    const T* filter = static_cast<const T*>(p.filter) + static_cast<long long>(channel) * R * R;
    UNROLL
    for (int t = 0; t < R * R; ++t) taps[t] = to_float(filter[t]);
    if (p.bias) bias = to_float(static_cast<const T*>(p.bias)[channel]);
    tiles.clear_margins();
  };
  pipeline_tiles(block_y(), p.tiles, p.splits, [&](int tile) { return place_of(tile, p); }, fill, prepare, compute);
}

template <class T, int R, int ST, int TR, int TW>
DEVICE void forward(const DepthwisePlanesArgs& p) {
  compute_strips<T, R, ST, false, TR, TW>(p);
}
template <class T, int R, int ST, int TR, int TW>
DEVICE void input_grad(const DepthwisePlanesArgs& p) {
  compute_strips<T, R, ST, true, TR, TW>(p);
}

// Adds up the sums of a plane's threads, one row of the filter at a time, in a fixed order.
template <int R>
DEVICE void add_up(const DepthwisePlanesArgs& p, const Worker& worker, const float (&sums)[R * R], float* shared) {
  const int lanes = 1 << p.log_lanes, lane = thread_id() & (lanes - 1);
  float* result = static_cast<float*>(p.result) + static_cast<long long>(block_y()) * R * R * p.channels + worker.first;
  UNROLL
  for (int r = 0; r < R; ++r) {
    UNROLL
    for (int s = 0; s < R; ++s) shared[s * p.threads + thread_id()] = sums[r * R + s];
    barrier();
    for (int begin = 0; begin < p.planes * R; begin += p.threads >> p.log_lanes) {
      const int element = begin + (thread_id() >> p.log_lanes), plane = element / R, s = element % R;
      float sum = 0;
      if (plane < worker.planes)
        for (int i = lane; i < p.workers; i += lanes) sum += shared[s * p.threads + plane * p.workers + i];
      for (int mask = lanes / 2; mask; mask /= 2) sum += shuffle_xor(sum, mask);
      if (!lane && plane < worker.planes) result[(r * R + s) * p.channels + plane] = sum;
    }
    barrier();
  }
}

// dw[r] = sum over o of y[o] * x[o * ST + r - pad], likewise for columns. Each block sums a part of the tiles; parts
// and order are fixed.
template <class T, int R, int ST, int TR, int TW>
DEVICE void weight_grad(const DepthwisePlanesArgs& p) {
  constexpr int kRows = planes_window(R, ST, false, TR), kColumns = planes_window(R, ST, false, TW);
  DYNAMIC_SHARED(memory);
  const Worker worker = worker_of(p);
  const int buffers = p.splits < p.tiles ? 2 : 1;
  const Tiles<T> x_tiles{p.source_tile, p.threads, buffers, memory};
  const Tiles<T> y_tiles{p.y_tile, p.threads, buffers, memory};

  float sums[R * R] = {};
  const auto fill = [&](const TilePlace& place, int buffer) {
    const long long plane = static_cast<long long>(place.image) * p.channels + worker.first;
    x_tiles.fill(p.source, plane, worker.planes, place.band, buffer);
    y_tiles.fill(p.y, plane, worker.planes, place.band, buffer);
  };
  const auto prepare = [&] {
    x_tiles.clear_margins();
    y_tiles.clear_margins();
  };
  const auto compute = [&](const TilePlace& tile, int buffer) {
    const int band = tile.band;
    const Band x_band = band_of(p.source_tile, band), y_band = band_of(p.y_tile, band);
    if (p.source_tile.run_bytes) x_tiles.spread(worker.planes, band, buffer);
    if (p.y_tile.run_bytes) y_tiles.spread(worker.planes, band, buffer);
    if (p.source_tile.run_bytes || p.y_tile.run_bytes) barrier();
    for (int strip = worker.strip; !worker.idle && strip < p.strips; strip += p.workers) {
      int across = strip;
      const int down = band * p.strips_down + divide_with_rest(across, p.by_across);
      const Windows<T> xs(x_tiles, x_band, buffer, worker.plane, down * TR * ST + p.first_row,
                          across * TW * ST + planes_margin(sizeof(T)));
      const Windows<T> ys(y_tiles, y_band, buffer, worker.plane, down * TR, across * TW);
      float y[TR][TW];
      UNROLL
      for (int o = 0; o < TR; ++o) ys.template read<0, TW>(o, y[o]);
      UNROLL
      for (int i = 0; i < kRows; ++i) {
        float x[kColumns];
        xs.template read<planes_head(R, ST, false), TW * ST>(i, x);
        UNROLL
        for (int o = 0; o < TR; ++o) {
          const int r = i - o * ST;
          if (r < 0 || r >= R) continue;
          UNROLL
          for (int s = 0; s < R; ++s) {
            UNROLL
            for (int j = 0; j < TW; ++j) sums[r * R + s] += x[j * ST + s] * y[o][j];
          }
        }
      }
    }
  };
  pipeline_tiles(block_y(), p.tiles, p.splits, [&](int tile) { return place_of(tile, p); }, fill, prepare, compute);
  add_up<R>(p, worker, sums, reinterpret_cast<float*>(memory));
}

}  // namespace
}  // namespace reformer

// Without an occupancy, ptxas chooses 64 or 128 registers and spills the rest.
#define X(what, T, R, ST, TR, TW)                                                                \
  KERNEL_OCCUPANCY(reformer::kDepthwisePlanesThreads, R == 3 && ST == 1 ? 3 : 2)                 \
  depthwise_planes_##what##_##T##_##R##_##ST##_##TR##x##TW(reformer::DepthwisePlanesArgs args) { \
    reformer::grid_dependency_launch();                                                          \
    reformer::what<reformer::T, R, ST, TR, TW>(args);                                            \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "depthwise_planes.inc"
#endif
