// Sums of a tensor's rows by segments: what a graph's nodes get from adjacent ones, and gradients of what was looked
// up. The order of additions depends on the sizes only, so results repeat.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "../device/warp.h"
#include "segments.h"

namespace reformer {
namespace {

template <class T, int kCount>
struct SegmentSum {
  static constexpr int kWarps = kSegmentThreads / kWarp;
  static constexpr int kUnroll = 2;  // rows of the source whose loads are in flight at once
  using Sum = float[kCount];
  using Shared = float[kWarps][kWarp * kCount];

  const SegmentSumArgs& p;
  Shared& shared;
  const int x = lane_id() & ((1 << p.log_across) - 1), y = lane_id() >> p.log_across;
  const int down = kWarp >> p.log_across;  // rows of the source that a warp reads side by side

  // Adds these entries; all lanes of the same columns have the sum.
  DEVICE void add(int begin, int end, int column, bool wanted, Sum& sum) const {
    for (int first = begin; first < end; first += kUnroll * down) {
      int from[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int at = first + i * down + y;
        from[i] = at < end ? int(p.order[at]) : -1;
      }
      Pack<T, kCount> some[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i)
        if (wanted && from[i] >= 0)
          some[i] =
              load<T, kCount>(static_cast<const T*>(p.source) + static_cast<long long>(from[i]) * p.columns + column);
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        if (!wanted || from[i] < 0) continue;
        float values[kCount];
        widen<T, kCount>(some[i], values);
        UNROLL
        for (int j = 0; j < kCount; ++j) sum[j] += values[j];
      }
    }
    for (int mask = 1 << p.log_across; mask < kWarp; mask *= 2) {
      UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] += shuffle_xor(sum[j], mask);
    }
  }

  DEVICE void write(int row, int column, bool wanted, Sum& sum) const {
    if (!wanted || y) return;
    const long long at = static_cast<long long>(row) * p.columns + column;
    if (p.base) {
      float values[kCount];
      widen<T, kCount>(load<T, kCount>(static_cast<const T*>(p.base) + at), values);
      UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] += values[j];
    }
    store<T, kCount>(static_cast<T*>(p.to) + at, narrow<T, kCount>(sum));
  }

  // visit(column, wanted) for the lane's columns.
  template <class Visit>
  DEVICE void each_column(Visit visit) const {
    const int begin = block_y() * p.columns_each;
    const int end = begin + p.columns_each < p.columns ? begin + p.columns_each : p.columns;
    for (int first = begin; first < end; first += kCount << p.log_across) {
      const int column = first + x * kCount;
      visit(column, column < end);
    }
  }

  DEVICE void run() {
    const int first = block_x() * kWarps;
    const auto begin_of = [&](int row) { return int(p.begins[row < p.rows ? row : p.rows]); };
    const int own = first + warp_id();
    const int begin = begin_of(own), end = begin_of(own + 1);
    if (own < p.rows && end - begin <= kSegmentShared) {
      each_column([=](int column, bool wanted) {
        Sum sum = {};
        add(begin, end, column, wanted, sum);
        write(own, column, wanted, sum);
      });
    }
    for (int row = first; row < first + kWarps; ++row) {
      const int from = begin_of(row), count = begin_of(row + 1) - from;
      if (count > kSegmentShared) add_shared(row, from, count);
    }
  }

  // All warps have a share of the row's entries.
  DEVICE void add_shared(int row, int begin, int count) {
    const int each = (count + kWarps - 1) / kWarps, before = warp_id() * each;
    const int first = begin + (before < count ? before : count);
    const int last = begin + (before + each < count ? before + each : count);
    each_column([=](int column, bool wanted) {
      Sum sum = {};
      add(first, last, column, wanted, sum);
      float* const mine = shared[warp_id()] + lane_id() * kCount;
      UNROLL
      for (int j = 0; j < kCount; ++j) mine[j] = sum[j];
      barrier();
      if (warp_id() == 0) {
        for (int warp = 1; warp < kWarps; ++warp) {
          UNROLL
          for (int j = 0; j < kCount; ++j) sum[j] += shared[warp][lane_id() * kCount + j];
        }
        write(row, column, wanted, sum);
      }
      barrier();
    });
  }
};

}  // namespace
}  // namespace reformer

#define X(T, kCount)                                                                            \
  KERNEL(reformer::kSegmentThreads) segment_sum_##T##_##kCount(reformer::SegmentSumArgs args) { \
    SHARED reformer::SegmentSum<reformer::T, kCount>::Shared shared;                            \
    reformer::grid_dependency_launch();                                                         \
    reformer::grid_dependency_wait();                                                           \
    reformer::SegmentSum<reformer::T, kCount>{args, shared}.run();                              \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "segments.inc"
#endif
