// Sums of rows by segments, and the numbers of rows that they want, on the CPU.
#pragma once

#include <cstdint>

#include "types.h"

namespace reformer::cpu {

// to[i] = index[i], or index[i] + rows where that is negative and may be. Returns the first that is then none of 0 to
// rows - 1, or null.
template <class Id>
const Id* row_numbers(const Id* index, int32_t* to, int64_t count, int64_t rows, bool from_end);

// order: the numbers' places, sorted by the number, those of one number in their own order. begins, of rows + 1: where
// each number's begin.
void sort_rows(const int32_t* numbers, int32_t* order, int32_t* begins, int64_t count, int64_t rows);

// As SegmentSumArgs (hip/segment_reduce/segments_args.h) has it.
struct SegmentSum {
  const void* source;
  const void* base;  // or null
  const int32_t* order;
  const int32_t* begins;
  const void* factors;  // or null
  void* to;
  int64_t rows, columns;
};
void sum_segments(DType type, const SegmentSum& sum);

}  // namespace reformer::cpu
