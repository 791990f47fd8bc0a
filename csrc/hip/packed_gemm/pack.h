// Shared by the packing kernels and the host: how the elements of a convolution's operands are arranged in the operands
// of the inner problem, an implicit GEMM that requires channels in multiples of 16 bytes. pack_launch.h derives that
// problem.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kPackThreads = 256;
constexpr int kPackRoom = 4;               // channels per packed pixel
constexpr int kUnpackWeightGradWarps = 8;  // warps per block; each lane has an element, and each warp some of its parts

// Images as lines. A packed line consists of chunks of 16 bytes, each with one pixel or two adjacent ones; pixel i of
// the line is pixel i + left of the packed line. Missing pixels and channels are 0.
struct PackedImages {
  int width, packed_width;  // in pixels, and in chunks
  int left;
  int pixels;  // pixels per chunk: 1 or 2
  Divider by_width, by_packed_width;
};

// A filter, KRSC. Packed, adjacent groups of channels are merged into one wide group, in which a filter has its own
// group's values and zeros for the others; likewise adjacent taps. Either the groups or the taps per wide group are 1.
//
//   (k, r, s, c) -> (k, r, s / taps, (k's group % groups * taps + s % taps) * slot + c)
struct PackedFilter {
  int s, packed_s;
  int channels, packed_channels;  // per group
  int slot;                       // channels from one group or tap to the next
  Divider by_r, by_s, by_packed_s, by_channels, by_slot, by_taps, by_group_k, by_groups;
  Divider by_chunks;  // chunks of 16 bytes per packed tap
};

// Packs the filter, and also x if it is not read in place.
struct PackArgs {
  const void *x, *filter;
  void *packed_x, *packed_filter;
  int x_chunks, filter_chunks;
  int filter_blocks;  // the first blocks, as these take longest
  PackedImages images;
  PackedFilter shape;
};

struct UnpackInputGradArgs {
  const void* packed;
  void* x;
  int all_pixels;
  PackedImages images;
};

// Extracts the filter's gradient from the packed one, which is either a single array of the result's type, or several
// fp32 parts to be added up.
struct UnpackWeightGradArgs {
  const void* packed;
  void* filter;
  int parts, numel;
  long long packed_numel;
  PackedFilter shape;
};

using PackArgsOf_pack = PackArgs;
using PackArgsOf_unpack_input_grad = UnpackInputGradArgs;
using PackArgsOf_unpack_weight_grad = UnpackWeightGradArgs;
// Threads per block, given the threads per warp.
constexpr int pack_threads_pack(int) { return kPackThreads; }
constexpr int pack_threads_unpack_input_grad(int) { return kPackThreads; }
constexpr int pack_threads_unpack_weight_grad(int warp) { return kUnpackWeightGradWarps * warp; }

}  // namespace reformer
