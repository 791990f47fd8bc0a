// Shared by the depthwise kernels for NCHW and the host.
// Along each dimension the results are divided into strips, and each strip is computed from a window of the source: of
// x in forward and weight_grad (whose "result" is the output's gradient, which it only reads), of y in input_grad. The
// functions below define how strips and windows lie to each other, and which tap of the filter connects their elements,
// for filter R, stride ST and `grad` (input_grad). Windows are placed for a padding of (R - 1) / 2, which nearly all
// problems have: shared memory is then accessed by wide words. For other paddings the source is shifted within its
// rows.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kDepthwisePlanesThreads = 256;  // greatest number of threads per block; the launch sets the number

// Elements in a row of shared memory before the body of its first window: a wide word.
REFORMER_BOTH constexpr int planes_margin(int element_bytes) { return 16 / element_bytes; }

// In input_grad, result i gets source m times tap r for all i + pad = m * ST + r. Strips begin where
// (i + pad) % ST is planes_parity():
REFORMER_BOTH constexpr int planes_parity(int R, int ST, bool grad) { return grad ? (R - 1) / 2 % ST : 0; }
// Elements of a window before the m of the strip's first result.
REFORMER_BOTH constexpr int planes_before(int R, int ST, bool grad) {
  return grad ? (R - 1 - planes_parity(R, ST, grad)) / ST : 0;
}
// Number of elements of the window for `results` results, and the distance to the next strip's window.
REFORMER_BOTH constexpr int planes_window(int R, int ST, bool grad, int results) {
  return grad ? planes_before(R, ST, grad) + (planes_parity(R, ST, grad) + results - 1) / ST + 1
              : (results - 1) * ST + R;
}
REFORMER_BOTH constexpr int planes_step(int ST, bool grad, int results) { return grad ? results / ST : results * ST; }
// Elements of a window before its body, which has planes_step elements and begins at a multiple of planes_step.
REFORMER_BOTH constexpr int planes_head(int R, int ST, bool grad) {
  return grad ? planes_before(R, ST, grad) - ((R - 1) / 2 - planes_parity(R, ST, grad)) / ST : (R - 1) / 2;
}
// The tap that connects this element of the window to this result of the strip; none if it is negative or at least R.
REFORMER_BOTH constexpr int planes_tap(int R, int ST, bool grad, int source, int result) {
  const int shifted = planes_parity(R, ST, grad) + result;
  return grad ? ST * (shifted / ST + planes_before(R, ST, grad) - source) + shifted % ST : source - result * ST;
}
// Where the first strip begins, as a number of results before 0, and where its window begins in the source.
REFORMER_BOTH constexpr int planes_shift(int R, int ST, bool grad, int pad) {
  return grad ? (pad + ST - planes_parity(R, ST, grad)) % ST : 0;
}
REFORMER_BOTH constexpr int planes_first(int R, int ST, bool grad, int pad) {
  return grad ? (pad - planes_shift(R, ST, grad, pad) - planes_parity(R, ST, grad)) / ST - planes_before(R, ST, grad)
              : -pad;
}

// Parts of adjacent planes in shared memory, row after row, with zeros beside the elements of a plane and after all
// rows.
//
// Rows of words of at least 4 bytes are copied directly to their places. Rows of 16-bit elements that are not even
// aligned to 4 bytes are copied as contiguous runs of memory and moved to their places afterwards.
struct PlaneTile {
  int h, w;  // size of a plane
  int first, step,
      band_rows;                  // rows of the planes: start of the first band, distance of bands, and rows per band
  int rows, pitch, zeros;         // shared memory: rows per tile, elements per row, and zeros after all rows
  int origin;                     // where a plane's row begins within a row
  int offset;                     // in shared memory, in bytes
  int copy_bytes;                 // bytes per direct copy: 16, 8, 4 or an element
  int run_bytes;                  // bytes per copy of a run, 16, 8 or 4; 0: there are no runs
  int run_offset, run_size;       // where the runs are in shared memory, and the size of a tile's runs, in bytes
  Divider by_copies, by_margins;  // copies of a plane's row, and elements beside it
};

// How the results of strips are stored: from registers, or via shared memory, from where whole planes or bands are
// written by wide words, however the rows are aligned.
enum class PlaneStore : int { strips, pairs, elements };

// Tensors are dense NCHW, filters [channels][R][R]. Sizes are in elements.
//
// Block (x, y) computes `planes` adjacent channels of every `splits`-th tile. A tile is an image, or, with one plane
// per block, a band of an image. A thread always has the same plane, so that the plane's filter, or weight_grad's sums,
// stay in registers.
struct DepthwisePlanesArgs {
  const void* source;
  const void* y;       // weight_grad: the output's gradient
  const void* filter;  // forward, input_grad
  const void* bias;    // forward; may be null
  void* result;        // weight_grad: partial sums, fp32 [splits][R * R][channels]
  int channels, planes;
  int threads, workers;        // per block; per plane
  int strips;                  // strips of a plane per tile
  int strips_down, rows_down;  // rows of strips per band; the corresponding rows of results
  int shift_h, shift_w;        // how far the first strips begin before the first results
  int first_row;               // the source's row at which the first strips' windows begin
  int h, w;                    // the result's size; weight_grad: that of y
  int tiles, splits;
  PlaneStore store;
  int store_bytes;   // per access from shared memory: 16, 8, 4 or 2
  int store_offset;  // in shared memory, in bytes
  int log_lanes;     // weight_grad: threads that add up one sum at the end
  PlaneTile source_tile, y_tile;
  Divider by_workers, by_across, by_bands;
};

}  // namespace reformer
