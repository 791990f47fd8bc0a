// Sums of rows by segments, and the preparation of their row numbers, on the CPU.
#pragma once

#include <cstdint>

#include "types.h"

namespace reformer::cpu {

// to[i] = index[i], or index[i] + rows if it is negative and that is allowed. Returns a pointer to the first number
// that is then outside [0, rows), or null. Each `count_each` numbers are of a table of their own, of so many rows; the
// rows of the tables before theirs are added to them.
template <class Id>
const Id* row_numbers(const Id* index, int32_t* to, int64_t count, int64_t count_each, int64_t rows, bool from_end);

// order: positions of the numbers sorted by number; equal numbers keep their order. begins (rows + 1 elements): where
// each number's positions begin.
void sort_rows(const int32_t* numbers, int32_t* order, int32_t* begins, int64_t count, int64_t rows);

// The arguments of a segment sum; see SegmentSumArgs (hip/segment_reduce/segments_args.h).
struct SegmentSum {
  const void* source;
  const void* base;  // may be null
  const int32_t* order;
  const int32_t* begins;
  const void* factors;  // may be null
  void* to;
  int64_t rows, columns;
};
void sum_segments(DType type, const SegmentSum& sum);

}  // namespace reformer::cpu
