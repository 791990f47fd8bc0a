// The gradient of an embedding table with many entries, and with too many rows for a copy for each thread
// (few_rows.hip). A block has one copy in shared memory, in which each warp has columns of its own. A warp adds to a
// column the entries of all its lanes at once: lanes with the same row first add up theirs. Another kernel adds up the
// blocks' tables. Every sum has one order, which depends only on the ids.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "../device/warp.h"
#include "few_rows_args.h"

namespace reformer {
namespace {

using int32 = int;
using int64 = long long;

template <class T, class Id>
struct MoreRows {
  static constexpr int kUnroll = 8;  // entries of a lane whose loads are in flight at once

  const FewRowsArgs& p;
  float* const sums;  // [columns][pitch], which is odd: no bank conflicts between columns, nor between adjacent rows
  const int lane = lane_id();
  const int first_column = block_y() * p.across;
  const int columns = p.columns - first_column < p.across ? p.columns - first_column : p.across;

  // The lanes with the same row; none, if the lane has no row (-1).
  DEVICE Ballot lanes_of(int row) const {
    Ballot same = ballot(row >= 0);
    for (int bit = 0; bit < p.bits; ++bit) {
      const bool is_set = row >> bit & 1;
      const Ballot set = ballot(is_set);
      same &= is_set ? set : ~set;
    }
    return row >= 0 ? same : 0;
  }

  // Adds up the values of lanes with the same row, in pairs, pairs of pairs, and so on; the lowest lane gets the sum.
  DEVICE float sum_of(float value, Ballot same) const {
    int place = bits_below(same, lane);  // among the lanes that are left
    Ballot later = same & ~((Ballot(2) << lane) - 1);
    while (ballot(later != 0)) {
      const float next = shuffle_from(value, later ? first_of(later) : lane);
      if (later) value += next;
      later &= ~ballot(place & 1);
      place >>= 1;
    }
    return value;
  }

  DEVICE void add_column(int column, int begin, int end) const {
    const Id* const ids = static_cast<const Id*>(p.ids);
    const T* const grad = static_cast<const T*>(p.grad) + (first_column + column) * p.column_stride;
    float* const to = sums + column * p.pitch;
    for (int first = begin; first < end; first += kUnroll * kWarp) {
      Id some_ids[kUnroll];
      T some[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int own = first + i * kWarp + lane, at = own < end ? own : end - 1;  // so that no load is conditional
        some_ids[i] = ids[at];
        some[i] = grad[at * p.entry_stride];
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        if (first + i * kWarp >= end) break;
        // Negative ones become large.
        const bool is_row = static_cast<unsigned long long>(some_ids[i]) < static_cast<unsigned>(p.rows) &&
                            some_ids[i] != p.padding && first + i * kWarp + lane < end;
        const int row = is_row ? int(some_ids[i]) : -1;
        const Ballot same = lanes_of(row);
        const float sum = sum_of(to_float(some[i]), same);
        if (is_row && first_of(same) == lane) to[row] += sum;
        warp_barrier();
      }
    }
  }

  DEVICE void run() const {
    const int threads = p.warps * kWarp, own = thread_id();
    for (int i = own; i < columns * p.pitch; i += threads) sums[i] = 0.0f;
    barrier();
    const int begin = block_x() * p.entries_each;
    const int end = p.count - begin < p.entries_each ? p.count : begin + p.entries_each;
    for (int column = warp_id(); column < columns; column += p.warps) add_column(column, begin, end);
    barrier();
    T* const to = static_cast<T*>(p.to);
    for (int cell = own; cell < p.rows * columns; cell += threads) {
      const int row = cell / columns, column = cell % columns;
      const float sum = sums[column * p.pitch + row];
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

#define X(T, Id)                                                                                 \
  KERNEL(reformer::kMoreRowsThreads) more_rows_##T##_##Id(reformer::FewRowsArgs args) {          \
    DYNAMIC_SHARED(memory);                                                                      \
    reformer::grid_dependency_launch();                                                          \
    reformer::grid_dependency_wait();                                                            \
    reformer::MoreRows<reformer::T, reformer::Id>{args, reinterpret_cast<float*>(memory)}.run(); \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "more_rows.inc"
#endif
