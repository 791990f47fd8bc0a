// Shared by the kernels of segment sums and the host.
#pragma once

namespace reformer {

constexpr int kSegmentThreads = 256;
constexpr int kSegmentBlocks = 4;  // least number of resident blocks per multiprocessor
constexpr int kSegmentLong = 128;  // entries of a segment per row that its lanes read side by side; with more, all
                                   // warps of its block share them

// Row r of the result is base[r] plus the sum of source[order[i]] * factors[i] over i from begins[r] to begins[r + 1] -
// 1. A warp has 2^(log_across + log_side) lanes for each row of the result; blocks divide the columns along y.
struct SegmentSumArgs {
  const void* source;   // [..][columns]
  const void* base;     // [rows][columns]; may be null
  const int* order;     // [entries]
  const int* begins;    // [rows + 1]
  const void* factors;  // [entries]; null: all ones
  void* to;             // [rows][columns]
  int rows, columns;
  int log_across;  // lanes of a warp that share a row of the source
  int log_side;    // rows of the source that are read side by side for a row of the result
  int columns_each;
};

}  // namespace reformer
