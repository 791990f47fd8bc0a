// The register tile of all matrix products on the CPU: C = start + A B, where A is broadcast row by row, and B and C
// are in vectors along the columns. Both operands have arbitrary strides, so that packed panels and dense matrices are
// read alike.
#pragma once

#include "device.h"

namespace reformer {

template <class S>
struct GemmTile {
  int64_t depth;  // length of the sums
  const S* a;     // A(m, d) at a[m * a_row + d * a_step]
  int64_t a_row, a_step;
  const S* b;  // B(d, n) at b[d * b_step + n]; whole vectors are read
  int64_t b_step;
  S* c;  // C(m, n) at c[m * c_row + n]
  int64_t c_row;
  int32_t cols;       // of C; nothing beyond is written
  bool accumulate;    // add to C, without biases; at the end, as a long sum split into parts rounds less than one chain
  const S* row_bias;  // one per row of the tile, or null
  const S* col_bias;  // one per column, or null; not together with row_bias
};

template <class S>
using GemmKernel = void (*)(const GemmTile<S>&);

constexpr int kMaxTileRows = 8, kMaxTileVectors = 3;

// Kernels of an instruction set. The largest tile has `rows` rows and `vectors` vectors of `lanes` columns.
template <class S>
struct GemmKernels {
  int32_t rows, vectors, lanes;
  GemmKernel<S> kernel[kMaxTileRows][kMaxTileVectors];  // for 1.. rows and 1.. vectors

  int32_t cols() const { return vectors * lanes; }
  void run(int32_t tile_rows, const GemmTile<S>& tile) const {
    kernel[tile_rows - 1][(tile.cols + lanes - 1) / lanes - 1](tile);
  }
};

// How a tile adds up its products: in runs (simd/runs.h), or in shorter ones, for algorithms that amplify rounding
// errors.
enum class GemmSum { runs, cascade };
constexpr int kCascade = 8;

// The kernels of an instruction set that this machine supports. The table is filled by code compiled for that set.
template <class S>  // float or double
const GemmKernels<S>& gemm_kernels(Isa isa, GemmSum sum = GemmSum::runs);

// Columns of the largest fp32 tile. Plans, which may be for any instruction set, take the numbers from here.
struct GemmColumns {
  int32_t vectors, lanes;
};
GemmColumns gemm_columns(Isa isa);

}  // namespace reformer
