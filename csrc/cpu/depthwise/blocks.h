// Groups planes into blocks of lanes, and rows into bands.
#pragma once

#include "planar.h"

namespace reformer::depthwise {

constexpr int64_t kMaxBlockVectors = 4;

// Blocks of consecutive planes that fill a few vectors. No block straddles two segments, of `segment` planes each.
struct Blocks {
  int64_t segment = 1, vectors = 1, planes = 1, per_segment = 1;  // planes: in a block at most

  Blocks() = default;
  // In NHWC the channels of a pixel are contiguous: blocks have several vectors, so that memory is accessed in longer
  // runs, and segments are images. In NCHW one vector is as good, and the whole batch is one segment.
  Blocks(Layout layout, int64_t segment_planes, int64_t lanes);

  int64_t first(int64_t block) const { return block / per_segment * segment + block % per_segment * planes; }
  int size(int64_t block) const {
    const int64_t left = segment - block % per_segment * planes;
    return static_cast<int>(left < planes ? left : planes);
  }
};

constexpr int64_t kScratchBandBytes = 256 << 10;  // per band of a block: it stays in the second-level cache

// The number of bands into which to divide the `rows` rows of each of `blocks` blocks, with at most max_rows rows per
// band, so that `threads` threads get equal work.
int64_t band_count(int64_t rows, int64_t max_rows, int64_t blocks, int64_t threads);

}  // namespace reformer::depthwise
