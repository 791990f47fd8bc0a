// Shared by the depthwise kernels and their host.
#pragma once

#include "../device/divide.h"

namespace reformer {

// Threads of a block, at most; the launch says how many.
constexpr int kDepthwiseThreads_forward = 256, kDepthwiseThreads_input_grad = 256;
constexpr int kDepthwiseThreads_weight_grad = 128, kDepthwiseThreads_finish = 128;

constexpr int kDepthwiseFinishOutputs = 32;  // elements of a filter that a block of the finish computes

// Rows of a strip, the part of a tile that a thread computes. In input_grad with strides it is the stride.
template <int ST>
constexpr int kDepthwiseRows = ST == 1 ? 2 : 1;

// Floats from one tap to the next of the filters in shared memory: more than channels, so that neighbouring taps lie in
// different banks, and a multiple of 4 wherever channels are, so that what follows is aligned as well.
REFORMER_BOTH constexpr int depthwise_filter_pitch(int channels) { return channels + 4; }

// Tensors are dense NHWC, filters [channels][R][R]. Sizes in elements.
//
// Block (x, y) computes V << log_lanes channels of every `splits`-th tile of all images of the result (weight_grad:
// of the output's gradient). It copies what a tile is computed from, borders included, into shared memory: a part of x,
// in input_grad of y.
struct DepthwiseArgs {
  const void* x;       // forward, weight_grad: the input; finish: partial sums
  const void* y;       // input_grad, weight_grad: the output's gradient
  const void* filter;  // forward, input_grad
  const void* bias;    // forward; may be null
  void* result;        // weight_grad: partial sums, fp32 [splits][R * R][channels]; finish: the filter
  int channels;
  int h, w, out_h, out_w;  // x's size and y's
  int pad_h, pad_w;
  int taps;                         // finish: R * R
  int threads;                      // threads of a block, a power of two
  int copy_bytes;                   // at once into shared memory, 16, 8 or 4; they divide a pixel's bytes
  int log_lanes;                    // up to 5; neighbouring threads have neighbouring channels
  int tile_rows, tile_columns;      // in whole strips
  int source_rows, source_columns;  // what a tile is computed from
  int strips;                       // strips of a tile
  int tiles, splits;
  Divider tiles_across, tiles_down;          // an image's tiles
  Divider by_source_places, by_tile_places;  // copies of copy_bytes in a row of what is copied
  Divider by_strips_across;
};

}  // namespace reformer
