// The inner loops of the direct convolution, compiled for each instruction set. They work on fp32 or fp64 planes only;
// the copies in and out convert the tensor's type, layout and strides.
#pragma once

#include "cpu/element.h"
#include "device.h"

namespace reformer {

// out(m, q) = bias[m] + sum over d of weights[d][m] * planes[offsets[d] + q]
template <class S>
struct DirectTile {
  int64_t depth;
  const S* weights;        // depth x rows of the tile
  const S* planes;         // whole vectors are read
  const int32_t* offsets;  // depth
  S* out;
  int64_t out_row;
  int32_t cols;   // q; nothing beyond is written
  const S* bias;  // one per row, or null
};

// sums(m, d) += sum over q of rows[m * row_step + q] * planes[offsets[d] + q], for several consecutive strips
template <class S>
struct DirectDots {
  int32_t strips;
  int64_t vectors;  // of q in a strip; all vectors are full
  const S* rows;
  int64_t row_step, rows_strip;  // from one row to the next, from one strip to the next
  const S* planes;
  int64_t planes_strip;
  const int32_t* offsets;
  S* sums;
  int64_t sums_row;
};

constexpr int kDirectRows = 8, kDirectVectors = 8, kDirectDotRows = 4, kDirectDotCols = 6;

template <class S>
struct DirectKernels {
  int32_t lanes;
  int32_t rows;                  // of the tallest tile
  int32_t vectors[kDirectRows];  // of the widest tile of 1.. rows
  int32_t dot_rows, dot_cols;    // of the largest block of dots
  void (*tile[kDirectRows][kDirectVectors])(const DirectTile<S>&);
  void (*dots[kDirectDotRows][kDirectDotCols])(const DirectDots<S>&);

  // How many of these channels the next tile takes: tiles have 1 to 4 rows, or the greatest number.
  int32_t tile_rows(int32_t channels) const { return channels >= rows ? rows : channels < 4 ? channels : 4; }
};

template <class S>  // float or double
const DirectKernels<S>& direct_kernels(Isa isa);

// channels x cols elements of a tensor and of planes with consecutive columns.
template <class T>
struct DirectCopy {
  using Sum = typename Element<T>::Sum;
  T* tensor;
  int64_t tensor_channel, tensor_col;
  Sum* plane;
  int64_t plane_channel;
  int32_t channels, cols;
};

template <class T>
struct DirectCopies {
  void (*load)(const DirectCopy<T>&);   // planes from the tensor
  void (*store)(const DirectCopy<T>&);  // the tensor from planes
};

template <class T>
DirectCopies<T> direct_copies(Isa isa);

}  // namespace reformer
