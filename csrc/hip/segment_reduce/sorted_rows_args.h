// Shared by the kernels that number rows for segment sums and their host.
#pragma once

namespace reformer {

constexpr int kRowNumberThreads = 256;
constexpr int kRowNumbersEach = 4;  // of a thread

// to[i] = index[i], or index[i] + rows where that is negative and may be. Others than 0 to rows - 1 are an error.
struct RowNumbersArgs {
  const void* index;  // [count]
  int* to;            // [count]
  int count, rows;
  bool from_end;  // whether negative numbers count from the end
};

// begins[r]: how many of the sorted numbers are less than r. order: the same numbers in a narrower type.
struct SegmentBeginsArgs {
  const int* sorted;            // [entries]
  const long long* wide_order;  // [entries]
  int* order;                   // [entries]
  int* begins;                  // [rows + 1]
  int entries, rows;
};

}  // namespace reformer
