// Shared by the kernels of segment sums and their host.
#pragma once

namespace reformer {

constexpr int kSegmentThreads = 256;
constexpr int kSegmentBlocks = 4;  // that a multiprocessor has at once, at least
constexpr int kSegmentLong = 128;  // entries of a segment for each row that its lanes read side by side: with more, all
                                   // warps of its block have a share of them

// Row r of the result is base[r] and the sum of source[order[i]] * factors[i] over i from begins[r] to begins[r + 1]
// - 1. A warp has 2^(log_across + log_side) lanes for each row of the result, and a block some of the columns along y.
struct SegmentSumArgs {
  const void* source;   // [..][columns]
  const void* base;     // [rows][columns]; may be null
  const int* order;     // [entries]
  const int* begins;    // [rows + 1]
  const void* factors;  // [entries]; may be null, for ones
  void* to;             // [rows][columns]
  int rows, columns;
  int log_across;  // of a warp's lanes, those that share a row of the source
  int log_side;    // rows of the source that are read side by side for a row of the result
  int columns_each;
};

}  // namespace reformer
