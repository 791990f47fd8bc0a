// Shared by the kernels that prepare row numbers for segment sums and the host.
#pragma once

namespace reformer {

constexpr int kRowNumberThreads = 256;
constexpr int kRowNumbersEach = 4;  // per thread

// to[i] = index[i], or index[i] + rows if it is negative and that is allowed. Results outside [0, rows) are an error.
// Numbers of several tables, one after another, get the rows of the tables before theirs added.
struct RowNumbersArgs {
  const void* index;  // [count]
  int* to;            // [count]
  int count, rows;    // rows: of a table
  int count_each;     // numbers of a table
  bool from_end;      // negative numbers count from the end
};

// begins[r]: the number of sorted numbers less than r. order: copied to a narrower type.
struct SegmentBeginsArgs {
  const int* sorted;            // [entries]
  const long long* wide_order;  // [entries]
  int* order;                   // [entries]
  int* begins;                  // [rows + 1]
  int entries, rows;
};

}  // namespace reformer
