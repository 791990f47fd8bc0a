// How planes are grouped into blocks of lanes, and rows into bands.
#pragma once

#include "planar.h"

namespace reformer::depthwise {

constexpr int64_t kMaxBlockVectors = 4;

// Consecutive planes, a few vectors full of them, none of them straddling two segments of `segment` planes each.
struct Blocks {
  int64_t segment = 1, vectors = 1, planes = 1, per_segment = 1;  // planes: in a block at most

  Blocks() = default;
  // In NHWC the channels of a pixel are contiguous: a block takes several vectors so that memory is read and
  // written in longer runs, and segments are images. In NCHW a vector is as good, and the whole batch one segment.
  Blocks(Layout layout, int64_t segment_planes, int64_t lanes);

  int64_t first(int64_t block) const { return block / per_segment * segment + block % per_segment * planes; }
  int size(int64_t block) const {
    const int64_t left = segment - block % per_segment * planes;
    return static_cast<int>(left < planes ? left : planes);
  }
};

constexpr int64_t kScratchBandBytes = 256 << 10;  // for a band of a block: it stays in the second-level cache

// The number of bands into which to divide `rows` rows of each of `blocks` blocks, at most max_rows in a band, so that
// `threads` threads have the same work.
int64_t band_count(int64_t rows, int64_t max_rows, int64_t blocks, int64_t threads);

}  // namespace reformer::depthwise
