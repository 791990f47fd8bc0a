// The register tile at the bottom of every matrix product on the CPU: C = start + A B with A broadcast row by row and B
// and C in vectors along the columns. Both operands have free strides, so that it reads packed panels and dense
// matrices alike.
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
  const S* row_bias;  // one a row of the tile, or null
  const S* col_bias;  // one a column, or null; not besides row_bias
};

template <class S>
using GemmKernel = void (*)(const GemmTile<S>&);

constexpr int kMaxTileRows = 8, kMaxTileVectors = 3;

// The kernels of an instruction set: the largest tile has `rows` rows and `vectors` vectors of `lanes` columns.
template <class S>
struct GemmKernels {
  int32_t rows, vectors, lanes;
  GemmKernel<S> kernel[kMaxTileRows][kMaxTileVectors];  // of 1.. rows, 1.. vectors

  int32_t cols() const { return vectors * lanes; }
  void run(int32_t tile_rows, const GemmTile<S>& tile) const {
    kernel[tile_rows - 1][(tile.cols + lanes - 1) / lanes - 1](tile);
  }
};

// How a tile adds up its products: in runs (simd/runs.h), or in shorter ones for algorithms that enlarge rounding
// errors.
enum class GemmSum { runs, cascade };
constexpr int kCascade = 8;

// The kernels for an instruction set that this machine has: code compiled for the set fills the table.
template <class S>  // float or double
const GemmKernels<S>& gemm_kernels(Isa isa, GemmSum sum = GemmSum::runs);

// The columns of the largest tile of fp32. Plans take the numbers from here: they may be for any instruction set.
struct GemmColumns {
  int32_t vectors, lanes;
};
GemmColumns gemm_columns(Isa isa);

}  // namespace reformer
