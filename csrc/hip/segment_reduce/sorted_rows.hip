// Row numbers for segment sums: checks them and narrows them to 32 bits, which sort in half the time of 64; and finds
// where each row's numbers begin among the sorted ones.
#include "../device/grid_dependency.h"
#include "../device/platform.h"
#include "sorted_rows_args.h"

namespace reformer {
namespace {

using int32 = int;
using int64 = long long;

template <class Id>
struct row_numbers {
  using Args = RowNumbersArgs;

  DEVICE static void run(const Args& p) {
    const int first = block_x() * (kRowNumberThreads * kRowNumbersEach) + thread_id();
    Id numbers[kRowNumbersEach];
    UNROLL
    for (int i = 0; i < kRowNumbersEach; ++i) {
      const int at = first + i * kRowNumberThreads;
      numbers[i] = at < p.count ? static_cast<const Id*>(p.index)[at] : Id(0);
    }
    UNROLL
    for (int i = 0; i < kRowNumbersEach; ++i) {
      const int at = first + i * kRowNumberThreads;
      if (at >= p.count) continue;
      const int64 number = numbers[i] + (p.from_end && numbers[i] < 0 ? p.rows : 0);
      if (static_cast<unsigned long long>(number) >= static_cast<unsigned long long>(p.rows)) trap();
      p.to[at] = int(number) + at / p.count_each * p.rows;
    }
  }
};

template <class Id>
struct segment_begins {
  using Args = SegmentBeginsArgs;

  DEVICE static void run(const Args& p) {
    const int own = block_x() * kRowNumberThreads + thread_id();
    if (own < p.entries) p.order[own] = int(p.wide_order[own]);
    if (own > p.rows) return;
    int low = 0, high = p.entries;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (p.sorted[middle] < own)
        low = middle + 1;
      else
        high = middle;
    }
    p.begins[own] = low;
  }
};

}  // namespace
}  // namespace reformer

#define X(what, Id)                                                                          \
  KERNEL(reformer::kRowNumberThreads) what##_##Id(reformer::what<reformer::Id>::Args args) { \
    reformer::grid_dependency_launch();                                                      \
    reformer::grid_dependency_wait();                                                        \
    reformer::what<reformer::Id>::run(args);                                                 \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "sorted_rows.inc"
#endif
