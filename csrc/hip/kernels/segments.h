// What the kernels of segment sums and their host share.
#pragma once

namespace reformer {

constexpr int kSegmentThreads = 256;
constexpr int kSegmentShared = 512;  // entries of a row, above which all warps of its block have a share of them

// Row r of the result is base[r] and the source's rows order[begins[r]] up to order[begins[r + 1] - 1], added up in
// this order. A block has a row for each of its warps along x, and some of their columns along y.
struct SegmentSumArgs {
  const void* source;       // [..][columns]
  const void* base;         // [rows][columns]; may be null
  const long long* order;   // [entries]
  const long long* begins;  // [rows + 1]
  void* to;                 // [rows][columns]
  int rows, columns;
  int log_across;  // of a warp's lanes, those that share a row of the source
  int columns_each;
};

}  // namespace reformer
