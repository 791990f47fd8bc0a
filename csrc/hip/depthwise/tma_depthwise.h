// Shared by the TMA depthwise kernels and their host.
#pragma once

#include "../device/divide.h"
#include "../device/tensor_map.h"

namespace reformer {

constexpr int kTmaDepthwiseChannels = 64;  // channels of a tile: 128 bytes
constexpr int kTmaDepthwiseWarps = 8;      // that compute; one more starts the copies
constexpr int kTmaDepthwiseThreads = kTmaDepthwiseWarps * 32 + 32;

// Occupancy: blocks that a multiprocessor's registers have to be enough for, by the filter's size.
template <int R>
constexpr int kTmaDepthwiseOccupancy_forward = R == 3 ? 3 : 1;
template <int R>
constexpr int kTmaDepthwiseOccupancy_input_grad = kTmaDepthwiseOccupancy_forward<R>;
template <int R>
constexpr int kTmaDepthwiseOccupancy_weight_grad = R == 3 ? 2 : 1;

// Tensors are dense NHWC, filters [channels][R][R], of elements of 2 bytes.
//
// Block (x, y) computes 64 channels of every blocks-th tile of the result (weight_grad: of y). What a tile is computed
// from, borders included, is one box of the source (x; dy in input_grad), and in weight_grad one of y.
//
// A tile is made of strips: 8 pixels wide and `rows` high. In input_grad with stride 2 these are pixels of each of the
// four classes that read the same pixels of dy, so a strip is 16 x 2 rows of dx.
struct TmaDepthwiseArgs {
  TensorMap source, other;  // other: the result; in weight_grad y
  const void* filter;       // forward, input_grad
  const void* bias;         // forward; may be null
  float* partial;           // weight_grad: sums of each block, [blocks][R * R][channels]
  int channels;
  int flipped;                    // 1: the filter is read backwards: input_grad of stride 1 as a forward
  int tiles, blocks;              // all images' tiles; blocks that share them
  int stages;                     // tiles of the source in shared memory
  int stage_bytes, copied_bytes;  // a stage, and the boxes that are copied into it
  int tile_bytes;             // a tile of the result (two of them lie behind the stages); weight_grad: of y, in a stage
  int barriers;               // where in shared memory they are
  int images, height, width;  // forward: the result's size
  int tile_images, tile_h, tile_w;     // the result's tile
  int source_h, source_w;              // the source's box
  int source_halves;                   // half pixels of the source from one pixel of the result to the next
  int source_top, source_left;         // where the first tile's box begins
  int odd_h, odd_w;                    // input_grad: 1 if the padding is
  int rows;                            // rows of a strip
  int pairs;                           // pairs of strips
  Divider tiles_across, tiles_down;    // an image's tiles
  Divider strips_across, strips_down;  // a tile's strips
};

}  // namespace reformer
