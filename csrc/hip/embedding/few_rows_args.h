// Shared by the kernels of gradients of tables with few rows (few_rows.hip, more_rows.hip) and the host.
#pragma once

namespace reformer {

constexpr int kFewRowsThreads = 256;
constexpr int kMoreRowsThreads = 512;     // at most
constexpr int kFewRowsFloats = 12 << 10;  // of a block's shared memory, at most

// The gradient of a table. A block goes through `entries_each` entries (along x) for `across` columns (along y).
struct FewRowsArgs {
  const void* ids;   // [count]
  const void* grad;  // [count][columns], by these strides
  void* to;          // [rows][columns]
  float* parts;      // [blocks along x][rows][columns]: each block's sums; null if there is one
  long long entry_stride, column_stride;
  int count, rows, columns;
  long long padding;  // entries with this id are left out; -1: none are
  int entries_each, across;
  int pitch;              // few_rows: of a row of shared memory, at least across * side; more_rows: of a column
  int side;               // few_rows: entries that a block reads side by side
  bool entries_adjacent;  // few_rows: adjacent threads read adjacent entries of a column, else adjacent columns
  int warps, bits;        // more_rows: of a block, and of the number of a row
  bool adds;              // add to what the result has
};

}  // namespace reformer
