// The gradient of an embedding table with few rows and many entries. A block has many copies of its part of the table
// in shared memory, one for each entry that it reads side by side, so that each thread adds to numbers of its own; it
// adds these up, and another kernel adds up the blocks' tables. Every sum has one order, which depends only on the
// sizes.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "few_rows_args.h"

namespace reformer {
namespace {

using int32 = int;
using int64 = long long;

template <class T, class Id>
struct FewRows {
  static constexpr int kUnroll = 8;  // entries of a thread whose loads are in flight at once

  const FewRowsArgs& p;
  float* const sums;  // [rows][pitch]: no bank conflicts, whatever rows a warp adds to
  const int first_column = block_y() * p.across;
  const int columns = p.columns - first_column < p.across ? p.columns - first_column : p.across;

  // The thread that reads every side-th entry from `entry` on, in this column of the block.
  DEVICE int thread_of(int entry, int column) const {
    return p.entries_adjacent ? column * p.side + entry : entry * p.across + column;
  }

  DEVICE void add_entries() const {
    const int own = thread_id();
    const int entry = p.entries_adjacent ? own % p.side : own / p.across;
    const int column = p.entries_adjacent ? own / p.side : own % p.across;
    if (entry >= p.side || column >= columns) return;
    const int begin = block_x() * p.entries_each;
    const int end = p.count - begin < p.entries_each ? p.count : begin + p.entries_each;
    const Id* const ids = static_cast<const Id*>(p.ids);
    const T* const grad = static_cast<const T*>(p.grad) + (first_column + column) * p.column_stride;
    for (int first = begin + entry; first < end; first += kUnroll * p.side) {
      Id some_ids[kUnroll];
      T some[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int at = first + i * p.side < end ? first + i * p.side : end - 1;  // so that no load is conditional
        some_ids[i] = ids[at];
        some[i] = grad[at * p.entry_stride];
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        // Negative ones become large.
        const bool is_row =
            static_cast<unsigned long long>(some_ids[i]) < static_cast<unsigned>(p.rows) && some_ids[i] != p.padding;
        if (is_row && first + i * p.side < end) sums[int(some_ids[i]) * p.pitch + own] += to_float(some[i]);
      }
    }
  }

  // Rows begin at different entries, so that lanes with the same column read different banks.
  DEVICE float sum_of(int row, int column) const {
    float sum = 0.0f;
    int entry = row % p.side;
    for (int i = 0; i < p.side; ++i) {
      sum += sums[row * p.pitch + thread_of(entry, column)];
      entry = entry + 1 == p.side ? 0 : entry + 1;
    }
    return sum;
  }

  DEVICE void run() const {
    for (int i = thread_id(); i < p.rows * p.pitch; i += kFewRowsThreads) sums[i] = 0.0f;
    barrier();
    add_entries();
    barrier();
    T* const to = static_cast<T*>(p.to);
    for (int cell = thread_id(); cell < p.rows * columns; cell += kFewRowsThreads) {
      const int row = cell / columns, column = cell % columns;
      const float sum = sum_of(row, column);
      const int at = row * p.columns + first_column + column;
      if (p.parts)
        p.parts[static_cast<long long>(block_x()) * p.rows * p.columns + at] = sum;
      else
        from_float(p.adds ? sum + to_float(to[at]) : sum, to[at]);
    }
  }
};

}  // namespace
}  // namespace reformer

#define X(T, Id)                                                                                \
  KERNEL(reformer::kFewRowsThreads) few_rows_##T##_##Id(reformer::FewRowsArgs args) {           \
    DYNAMIC_SHARED(memory);                                                                     \
    reformer::grid_dependency_launch();                                                         \
    reformer::grid_dependency_wait();                                                           \
    reformer::FewRows<reformer::T, reformer::Id>{args, reinterpret_cast<float*>(memory)}.run(); \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "few_rows.inc"
#endif
