// Shared by the TMA GEMM kernels and the host: arguments, and constants on which both depend.
#pragma once

#include "../device/divide.h"
#include "../device/tensor_map.h"

namespace reformer {

constexpr int kTmaDepth = 64;  // elements of depth per step: 128 bytes
constexpr int kTmaStoreBytes =
    8192;  // 64 x 64 elements on their way to global memory; a warpgroup has two such buffers

// There is a warpgroup for each 64 rows, and a warp that starts the copies. If the sums take more registers than each
// thread gets, a whole warpgroup starts the copies and gives its registers away.
constexpr bool tma_gemm_gives_registers(int columns) { return columns > 128; }
constexpr int tma_gemm_threads(int rows, int columns) {
  return rows * 2 + (tma_gemm_gives_registers(columns) ? 128 : 32);
}

// The operand that both blocks of a cluster need: each block copies half of it for both.
enum class TmaShared : int { kNothing, kRows, kColumns };

// result = a b, summed over the depth. All three are matrices of 2-byte elements.
//
//               rows    columns  depth   NHWC: a lies along  b lies along  NCHW: a lies along  b lies along
//   forward     pixels  k        c       depth               depth         rows                depth
//   input_grad  pixels  c        k       depth               columns       rows                columns
//   weight_grad k       c        pixels  rows                columns       depth               depth
//
// In NHWC the pixels of all images are consecutive; in NCHW each image has matrices of its own, a tile of rows or a
// step belongs to one image, and the result of forward and input_grad lies along rows.
//
// Along x, each block (or cluster of two along z, which counts as one here) has a tile of columns and every
// row_blocks-th tile of rows; along y, a part of the steps.
struct TmaGemmArgs {
  TensorMap a, b, result;
  const void* bias;  // forward: [columns], or null
  float* partial;    // if not null, written in place of the result: [parts of the steps][rows][columns]
  int rows, columns, depth;
  int steps, steps_each;      // all steps, and those of a block
  int row_tiles, row_blocks;  // counted in clusters
  Divider column_tiles;       // counted in clusters
  TmaShared shared;
  Divider by_image;  // NCHW: tiles of rows per image; in weight_grad steps per image
  int b_resident;    // 1: all of b's tiles stay in shared memory for the block's further tiles of rows
};

}  // namespace reformer
