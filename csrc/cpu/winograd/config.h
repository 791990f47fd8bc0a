// A Winograd convolution and its partition: shared by the loops (winograd.cpp) and the transforms.
//
// The output is split into tiles of tile_h x tile_w elements. Each needs an overlapping input tile of (tile_h + 2) x
// (tile_w + 2), whose elements are called points after the transform. For every point there is one matrix product,
// [tiles, channels] x [channels, filters], instead of nine multiplications for every output element.
#pragma once

#include <algorithm>

#include "conv/problem.h"
#include "conv/solver.h"
#include "device.h"

namespace reformer {

struct WinogradTile {
  int32_t h, w;  // of the output
  int32_t points() const { return (h + 2) * (w + 2); }
};

// Channels are split into chunks of at most this many. Products are summed chunk by chunk, and within a chunk in
// cascade, in short chains of additions, as the output transform amplifies the error of a product.
constexpr int32_t kMaxWinogradChunk = 64;

// A correlation of `in` with 3x3 filters. An input gradient is also one: of dy, with the filters rotated.
struct WinogradConfig {
  const float *in, *filter, *bias;
  float* out;
  Layout layout;
  int32_t n, c, h, w;  // of the input
  int32_t k, out_h, out_w;
  int32_t pad_h, pad_w;
  int64_t filter_k, filter_c, filter_tap;  // strides of the filter; a tap is one of its nine elements
  bool rotated;                            // the filter is rotated by 180 degrees

  WinogradTile tile;
  int64_t tiles_down, tiles_across;  // per image
  int32_t chunks, chunk;             // of channels: number of chunks, and channels per chunk
  int32_t panels, panel_cols;        // of output channels: the columns of one matrix product

  int64_t tiles() const { return n * tiles_down * tiles_across; }
  int32_t chunk_depth(int32_t index) const { return std::min(chunk, c - index * chunk); }
  int32_t panel_width(int32_t panel) const { return std::min(panel_cols, k - panel * panel_cols); }
  // Floats of the transformed filters of one panel and chunk: [point][channel][panel_cols].
  int64_t filter_block() const { return int64_t{tile.points()} * chunk * panel_cols; }
};

// Transformed tiles, ordered by points: row i of point p begins at data[p * plane + i * row].
template <class T>
struct WinogradPlanes {
  T* data;
  int64_t plane, row;
};

// Tiles first .. first + count - 1 of one row of tiles of image n.
struct WinogradRun {
  int64_t n, down, across, count;
};

// Calls body(run, index of its first tile relative to begin) for the runs, of at most max_run tiles, of [begin, end).
template <class Body>
void for_each_run(const WinogradConfig& config, int64_t begin, int64_t end, int64_t max_run, const Body& body) {
  for (int64_t tile = begin; tile < end;) {
    const int64_t row = tile / config.tiles_across, across = tile % config.tiles_across;
    const int64_t count = std::min({end - tile, config.tiles_across - across, max_run});
    body(WinogradRun{row / config.tiles_down, row % config.tiles_down, across, count}, tile - begin);
    tile += count;
  }
}

}  // namespace reformer
