// Shared by the TMA GEMM kernels and their host: arguments and the numbers that both have to agree on.
#pragma once

#include "../device/divide.h"
#include "../device/tensor_map.h"

namespace reformer {

constexpr int kTmaDepth = 64;         // elements of a step along the depth: 128 bytes
constexpr int kTmaStoreBytes = 8192;  // 64 x 64 elements, on their way to global memory; a warpgroup has two of them

// A warpgroup for each 64 rows, and a warp that starts the copies; or, where the sums take more registers than there
// are for a thread each, a whole group that gives away its own.
constexpr bool tma_gemm_gives_registers(int columns) { return columns > 128; }
constexpr int tma_gemm_threads(int rows, int columns) {
  return rows * 2 + (tma_gemm_gives_registers(columns) ? 128 : 32);
}

// The operand that both blocks of a cluster need: each copies half of it for both.
enum class TmaShared : int { kNothing, kRows, kColumns };

// result = a b, summed over the depth. All three are matrices of elements of 2 bytes.
//
//               rows    columns  depth   NHWC: a lies along  b lies along  NCHW: a lies along  b lies along
//   forward     pixels  k        c       depth               depth         rows                depth
//   input_grad  pixels  c        k       depth               columns       rows                columns
//   weight_grad k       c        pixels  rows                columns       depth               depth
//
// In NHWC the pixels of all images are one row of them; in NCHW each image has matrices of its own, a tile of rows
// or a step is of one image's pixels, and the result of the first two lies along rows.
//
// Blocks (in clusters of two along z, which are counted as one here) along x have a tile of columns each and every
// row_blocks-th tile of rows, those along y a part of the steps.
struct TmaGemmArgs {
  TensorMap a, b, result;
  const void* bias;  // forward: [columns], or null
  float* partial;    // [parts of the steps][rows][columns] instead of the result, or null
  int rows, columns, depth;
  int steps, steps_each;      // all steps, and those of a block
  int row_tiles, row_blocks;  // counted in clusters
  Divider column_tiles;       // counted in clusters
  TmaShared shared;
  Divider by_image;  // NCHW: tiles of rows of an image; in weight_grad its steps
  int b_resident;    // 1: all of b's tiles stay in shared memory for the block's further tiles of rows
};

}  // namespace reformer
