// Shared by the TMA depthwise kernels and the host.
#pragma once

#include "../device/divide.h"
#include "../device/tensor_map.h"

namespace reformer {

constexpr int kTmaDepthwiseChannels = 64;  // channels per tile: 128 bytes
constexpr int kTmaDepthwiseWarps = 8;      // that compute; one more warp starts the copies
constexpr int kTmaDepthwiseThreads = kTmaDepthwiseWarps * 32 + 32;

// Occupancy: blocks per multiprocessor that the registers have to suffice for, by filter size.
template <int R>
constexpr int kTmaDepthwiseOccupancy_forward = R == 3 ? 3 : 1;
template <int R>
constexpr int kTmaDepthwiseOccupancy_input_grad = kTmaDepthwiseOccupancy_forward<R>;
template <int R>
constexpr int kTmaDepthwiseOccupancy_weight_grad = R == 3 ? 2 : 1;

// Tensors are dense NHWC, filters [channels][R][R], with 2-byte elements.
//
// Block (x, y) computes 64 channels of every blocks-th tile of the result (weight_grad: of y). The source of a tile,
// borders included, is one box of x (dy in input_grad); in weight_grad there is also one box of y.
//
// A tile consists of strips, which are 8 pixels wide and `rows` high. In input_grad with stride 2 these are pixels of
// each of the four classes that read the same pixels of dy, so a strip is 16 x 2 rows of dx.
struct TmaDepthwiseArgs {
  TensorMap source, other;  // other: the result; in weight_grad y
  const void* filter;       // forward, input_grad
  const void* bias;         // forward; may be null
  float* partial;           // weight_grad: sums of each block, [blocks][R * R][channels]
  int channels;
  int flipped;                    // 1: the filter is read backwards, for input_grad of stride 1 as a forward pass
  int tiles, blocks;              // tiles of all images; blocks that share them
  int stages;                     // tiles of the source in shared memory
  int stage_bytes, copied_bytes;  // size of a stage, and of the boxes that are copied into it
  int tile_bytes;             // a tile of the result (two of them follow the stages); weight_grad: of y, within a stage
  int barriers;               // their offset in shared memory
  int images, height, width;  // forward: of the result
  int tile_images, tile_h, tile_w;     // the tile of the result
  int source_h, source_w;              // the box of the source
  int source_halves;                   // twice the distance, in pixels of the source, of adjacent pixels of the result
  int source_top, source_left;         // where the first tile's box begins
  int odd_h, odd_w;                    // input_grad: 1 if the padding is odd
  int rows;                            // rows per strip
  int pairs;                           // pairs of strips
  Divider tiles_across, tiles_down;    // tiles of an image
  Divider strips_across, strips_down;  // strips of a tile
};

}  // namespace reformer
