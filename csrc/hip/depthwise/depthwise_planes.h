// Shared by the depthwise kernels for NCHW and their host.
// Along each dimension the results are divided into strips, and a strip is computed from a window of the source: of x
// in forward and weight_grad (whose "result" is the output's gradient, which it only reads), of y in input_grad. How
// the two lie to each other, and which tap of the filter joins them, the functions below say, for filter R, stride ST
// and `grad`, which is input_grad. Windows are placed as a padding of (R - 1) / 2 wants it, so that this one, nearly
// all there are, lets shared memory be written and read by wide words; others move the source in its rows.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kDepthwisePlanesThreads = 256;  // threads of a block, at most; the launch says how many

// Elements of a row of shared memory before the body of its first window: a wide word.
REFORMER_BOTH constexpr int planes_margin(int element_bytes) { return 16 / element_bytes; }

// input_grad: result i gets source m times tap r for all i + pad = m * ST + r. Strips begin where (i + pad) % ST is:
REFORMER_BOTH constexpr int planes_parity(int R, int ST, bool grad) { return grad ? (R - 1) / 2 % ST : 0; }
// Elements of a window before the m of the strip's first result.
REFORMER_BOTH constexpr int planes_before(int R, int ST, bool grad) {
  return grad ? (R - 1 - planes_parity(R, ST, grad)) / ST : 0;
}
// The elements of the window of so many results, and how far the next strip's window lies from it.
REFORMER_BOTH constexpr int planes_window(int R, int ST, bool grad, int results) {
  return grad ? planes_before(R, ST, grad) + (planes_parity(R, ST, grad) + results - 1) / ST + 1
              : (results - 1) * ST + R;
}
REFORMER_BOTH constexpr int planes_step(int ST, bool grad, int results) { return grad ? results / ST : results * ST; }
// Elements of a window before its body, which has planes_step of them and begins at a multiple of that.
REFORMER_BOTH constexpr int planes_head(int R, int ST, bool grad) {
  return grad ? planes_before(R, ST, grad) - ((R - 1) / 2 - planes_parity(R, ST, grad)) / ST : (R - 1) / 2;
}
// The tap that joins this element of the window to this result of the strip; outside of 0 .. R - 1 there is none.
REFORMER_BOTH constexpr int planes_tap(int R, int ST, bool grad, int source, int result) {
  const int shifted = planes_parity(R, ST, grad) + result;
  return grad ? ST * (shifted / ST + planes_before(R, ST, grad) - source) + shifted % ST : source - result * ST;
}
// Where the first strip begins, as so many results before 0, and its window in the source.
REFORMER_BOTH constexpr int planes_shift(int R, int ST, bool grad, int pad) {
  return grad ? (pad + ST - planes_parity(R, ST, grad)) % ST : 0;
}
REFORMER_BOTH constexpr int planes_first(int R, int ST, bool grad, int pad) {
  return grad ? (pad - planes_shift(R, ST, grad, pad) - planes_parity(R, ST, grad)) / ST - planes_before(R, ST, grad)
              : -pad;
}

// Parts of neighbouring planes in shared memory, row after row; zeros beside what is in a plane, and behind all.
//
// Rows in words of at least 4 bytes are copied to their place. Rows of 16-bit elements that are not aligned even to
// that are copied as they lie in memory, where planes follow each other, and put into their places once they are there.
struct PlaneTile {
  int h, w;  // a plane's size
  int first, step,
      band_rows;           // rows of the planes: where the first band begins, from one band to the next, and in a band
  int rows, pitch, zeros;  // shared memory: rows of a tile, elements of a row and of the zeros behind all rows
  int origin;              // where in a row a plane's begins
  int offset;              // in shared memory, in bytes
  int copy_bytes;          // at once into their places, 16, 8, 4 or an element
  int run_bytes;           // at once of what is put into its place later, 16, 8 or 4; 0: none is
  int run_offset, run_size;       // where runs are in shared memory, and the size of one tile's, in bytes
  Divider by_copies, by_margins;  // copies of a plane's row, and of what is beside it
};

// Strips' results go to memory from registers, or into shared memory first, from where whole planes or bands go on in
// wide words, whatever the rows are aligned to.
enum class PlaneStore : int { strips, pairs, elements };

// Tensors are dense NCHW, filters [channels][R][R]. Sizes in elements.
//
// Block (x, y) computes `planes` neighbouring channels, of every `splits`-th tile: a tile is an image, or a band of it
// with one plane at a time. Its thread has one plane throughout, so that the plane's filter, or weight_grad's sums,
// stay in registers.
struct DepthwisePlanesArgs {
  const void* source;
  const void* y;       // weight_grad: the output's gradient
  const void* filter;  // forward, input_grad
  const void* bias;    // forward; may be null
  void* result;        // weight_grad: partial sums, fp32 [splits][R * R][channels]
  int channels, planes;
  int threads, workers;        // threads of a block, and those of a plane
  int strips;                  // strips of a plane in a tile
  int strips_down, rows_down;  // rows of strips of a band; how many results that is
  int shift_h, shift_w;        // how far the first strips begin before the first results
  int first_row;               // the source's row where the first strips' windows begin
  int h, w;                    // the result's size; weight_grad: y's
  int tiles, splits;
  PlaneStore store;
  int store_bytes;   // at once from shared memory: 16, 8, 4 or 2
  int store_offset;  // in shared memory, in bytes
  int log_lanes;     // weight_grad: threads that add up one sum in the end
  PlaneTile source_tile, y_tile;
  Divider by_workers, by_across, by_bands;
};

}  // namespace reformer
