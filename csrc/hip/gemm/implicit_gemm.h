// Shared by the implicit GEMM kernels and the host: arguments, and constants on which both depend.
#pragma once

#include "../device/divide.h"

namespace reformer {

// Bytes of depth per step. NVIDIA GPUs (warps of 32) copy asynchronously and have enough shared memory for whole lines
// of 128 bytes; AMD GPUs have 64 KB per block.
constexpr int implicit_gemm_step_bytes(int warp) { return warp == 32 ? 128 : 64; }

// Tiles in shared memory at once: those being copied, and the one being multiplied. Without asynchronous copies the
// next tile waits in registers, and two are enough.
constexpr int implicit_gemm_stages(int stages, int warp) { return warp == 32 ? stages : 2; }

// Occupancy: blocks that the registers of an NVIDIA multiprocessor allow at once. more: registers that a thread needs
// in addition to its sums and a fixed number of others.
constexpr int implicit_gemm_occupancy(int rows, int columns, int threads, bool groups, int more = 0) {
  const int registers = (groups ? 64 : 80) + more + rows * columns / threads;
  return 65536 / (threads * (registers < 255 ? registers : 255));
}

// Tiles of the columns' operand in shared memory at once. If the tiles of all steps fit, they stay resident for the
// block's further rows.
REFORMER_BOTH int implicit_gemm_stages_b(int steps, int stages) { return steps < stages ? steps : stages; }

// Floats per line of sums in shared memory, on their way to other blocks of a cluster or, on AMD GPUs, to global
// memory. Chosen so that the threads of a warp which hold neighbouring rows access different banks.
constexpr int implicit_gemm_sums_pitch(int columns) { return columns + 8; }

// Rows of sums there at once: all of a block's, or, if they'd need more than 64 KB of an AMD GPU, those of a row of
// warps.
constexpr int implicit_gemm_slab_rows(int rows, int columns, int warps_down, int warp) {
  return warp == 64 && rows * implicit_gemm_sums_pitch(columns) * 4 > 32768 ? rows / warps_down : rows;
}

constexpr int kImplicitGemmMostClasses = 4;  // classes of pixels along each axis
constexpr int kImplicitGemmFinishWarps = 8;  // warps per block of the finish kernel
// Elements per block of the finish kernel: four per lane. Every warp has the same elements; warps divide the splits
// among themselves.
constexpr int implicit_gemm_finish_elements(int warp) { return warp * 4; }

// Pixels of the result that read the source at the same taps, along one axis: all pixels in forward; in input_grad
// those with the same remainder modulo the stride. Pixel i is at first + i * result_step in the result, and its tap t
// reads the source at origin + i * source_step + t * tap_step.
struct ImplicitGemmAxis {
  int count, first, origin;
  int taps, first_tap;  // first_tap: the first of them in the filter
  Divider by_count, by_taps;
};

// A product of matrices, summed over its depth, for each group of channels. Tensors are NHWC, the filter is KRSC.
//
//               rows                  columns         depth       a       b       result
//   forward     pixels of y           k               taps, c     x       filter  y
//   input_grad  pixels of dx          c               taps, k     dy      filter  dx
//   weight_grad k                     taps, c         pixels      dy      x       the filter's gradient
// All sizes are in elements. "Channels" counts those of all groups; those of one group are rows, columns or depth.
struct ImplicitGemmArgs {
  const void *a, *b;
  const void* bias;   // [the result's channels], or null
  void* result;       // or, if there are several, the partial sums: fp32 [partials] of the result
  int rows, columns;  // per group; rows: those of the largest class
  int result_pitch;   // from one row to the next
  int splits;         // parts of the depth
  int log_cluster;    // log2 of the cluster: adjacent splits whose blocks add up their sums before these are stored
  int partials;       // partial sums that remain after that
  long long result_numel;
  Divider column_tiles, groups, by_splits;

  // The image that is read by im2col: operand a, or b in weight_grad.
  int images, source_h, source_w, source_channels;
  // From one group to the next.
  int a_group, b_group, result_group;

  // forward, input_grad
  int same_pixels;    // 1: pixel i of the source belongs to row i
  int depth_of_tap;   // channels of a group times, in forward, the taps of a line if these are contiguous
  int depth_per_tap;  // that number rounded up to steps in input_grad
  int source_step_h, source_step_w, tap_step_h, tap_step_w;
  int filter_pitch;                    // from one k to the next
  int filter_pitch_h, filter_pitch_w;  // from one tap of a class to the next
  int filter_tap_h, filter_tap_w;      // from one tap to the adjacent one
  int scattered;                       // 1: rows are not adjacent in the result
  Divider by_next_rows;                // rows from one tile of a block to its next tile
  int result_h, result_w, result_step_h, result_step_w;
  Divider by_depth_per_tap, classes_w;
  ImplicitGemmAxis heights[kImplicitGemmMostClasses], widths[kImplicitGemmMostClasses];

  // weight_grad
  int pixels, a_pitch;  // pixels of a, and elements from one to the next
  int out_h, out_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  // Increments of a pixel's position in b: per step, and additionally past the end of a line or of an image.
  int step_h, step_w, step_offset, line_offset, image_offset;
  Divider by_out_h, by_out_w, by_channels, by_filter_w;
};

// Adds up partial sums.
struct ImplicitGemmFinishArgs {
  const float* partial;  // [splits][numel]
  const void* bias;      // [channels] or null
  void* result;          // [numel / channels][channels]
  long long numel;       // a multiple of 4, like channels
  int splits;
  Divider channels;
};

using ImplicitGemmArgsOf_forward = ImplicitGemmArgs;
using ImplicitGemmArgsOf_input_grad = ImplicitGemmArgs;
using ImplicitGemmArgsOf_weight_grad = ImplicitGemmArgs;
using ImplicitGemmArgsOf_finish = ImplicitGemmFinishArgs;

}  // namespace reformer
