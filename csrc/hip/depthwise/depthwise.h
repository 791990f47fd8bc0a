// Shared by the depthwise kernels and the host.
#pragma once

#include "../device/divide.h"

namespace reformer {

// Greatest number of threads per block; the launch sets the number.
constexpr int kDepthwiseThreads_forward = 256, kDepthwiseThreads_input_grad = 256;
constexpr int kDepthwiseThreads_weight_grad = 128, kDepthwiseThreads_finish = 128;

constexpr int kDepthwiseFinishOutputs = 32;  // elements of the filter per block of the finish kernel

// Rows of a strip, the part of a tile that a thread computes. In a strided input_grad it is the stride.
template <int ST>
constexpr int kDepthwiseRows = ST == 1 ? 2 : 1;

// Floats from one tap to the next of the filters in shared memory. More than the number of channels, so that
// neighbouring taps are in different banks, and a multiple of 4 if channels are, so that the data behind it is aligned,
// too.
REFORMER_BOTH constexpr int depthwise_filter_pitch(int channels) { return channels + 4; }

// Tensors are dense NHWC, filters [channels][R][R]. Sizes are in elements.
//
// Block (x, y) computes V << log_lanes channels of every `splits`-th tile of all images of the result (weight_grad: of
// the output's gradient). It copies the source of a tile, borders included, into shared memory: a part of x, or of y in
// input_grad.
struct DepthwiseArgs {
  const void* x;       // forward, weight_grad: the input; finish: partial sums
  const void* y;       // input_grad, weight_grad: the output's gradient
  const void* filter;  // forward, input_grad
  const void* bias;    // forward; may be null
  void* result;        // weight_grad: partial sums, fp32 [splits][R * R][channels]; finish: the filter
  int channels;
  int h, w, out_h, out_w;  // sizes of x and y
  int pad_h, pad_w;
  int taps;                         // finish: R * R
  int threads;                      // per block; a power of two
  int copy_bytes;                   // bytes per copy into shared memory: 16, 8 or 4; a divisor of a pixel's bytes
  int log_lanes;                    // up to 5; adjacent threads have adjacent channels
  int tile_rows, tile_columns;      // multiples of the strip's
  int source_rows, source_columns;  // size of the source of a tile
  int strips;                       // strips per tile
  int tiles, splits;
  Divider tiles_across, tiles_down;          // tiles of an image
  Divider by_source_places, by_tile_places;  // copies of copy_bytes in a row of the source
  Divider by_strips_across;
};

}  // namespace reformer
