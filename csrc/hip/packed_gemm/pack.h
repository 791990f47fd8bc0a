// Shared by the packing kernels and their host: where the elements of a convolution's operands lie in those of the
// inner problem, an implicit GEMM's, which wants channels in multiples of 16 bytes. pack_launch.h says which that is.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kPackThreads = 256;
constexpr int kPackRoom = 4;  // channels that a packed pixel has room for
constexpr int kUnpackWeightGradWarps =
    8;  // warps of a block; each lane has an element, and each warp some of its parts

// Images, as lines. Packed, a line is chunks of 16 bytes, each of one pixel or of two adjacent ones; pixel i of the
// line is the packed line's pixel i + left. Pixels and channels that do not exist are 0.
struct PackedImages {
  int width, packed_width;  // in pixels, and in chunks
  int left;
  int pixels;  // pixels of a chunk: 1 or 2
  Divider by_width, by_packed_width;
};

// A filter, KRSC. Packed, neighbouring groups of channels lie side by side in one wide group, in which a filter reads
// its own group and has zeros for the others; so do neighbouring taps. Either the groups or the taps of a wide group
// are 1.
//
//   (k, r, s, c) -> (k, r, s / taps, (k's group % groups * taps + s % taps) * slot + c)
struct PackedFilter {
  int s, packed_s;
  int channels, packed_channels;  // a group's
  int slot;                       // channels from one group or tap to the next
  Divider by_r, by_s, by_packed_s, by_channels, by_slot, by_taps, by_group_k, by_groups;
  Divider by_chunks;  // chunks of 16 bytes in a packed tap
};

// Packs the filter, and x where it is not read in place.
struct PackArgs {
  const void *x, *filter;
  void *packed_x, *packed_filter;
  int x_chunks, filter_chunks;
  int filter_blocks;  // the first ones: they take the longest
  PackedImages images;
  PackedFilter shape;
};

struct UnpackInputGradArgs {
  const void* packed;
  void* x;
  int all_pixels;
  PackedImages images;
};

// Picks the filter's gradient out of the packed one, of which there is one of the result's type, or several parts, in
// fp32, to be added up.
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
// Threads of a block, given those of a warp.
constexpr int pack_threads_pack(int) { return kPackThreads; }
constexpr int pack_threads_unpack_input_grad(int) { return kPackThreads; }
constexpr int pack_threads_unpack_weight_grad(int warp) { return kUnpackWeightGradWarps * warp; }

}  // namespace reformer
