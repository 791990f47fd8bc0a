// Sums of a tensor's rows by segments: aggregation over adjacent nodes of a graph, and gradients of gathers. The order
// of additions depends only on the sizes, so results repeat.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "../device/warp.h"
#include "segments_args.h"

namespace reformer {
namespace {

template <class T, int kCount>
struct SegmentSum {
  static constexpr int kWarps = kSegmentThreads / kWarp;
  static constexpr int kUnroll = 4;  // rows of the source per lane whose loads are in flight at once
  using Sum = float[kCount];
  struct Shared {
    float sums[kWarps][kWarp * kCount];
    bool is_long[kSegmentThreads];  // for each of the block's segments
  };

  const SegmentSumArgs& p;
  Shared& shared;
  const int x = lane_id() & ((1 << p.log_across) - 1);

  // to[i] = from[first + i * step]. Past the end the last one is read again, so that no load is conditional.
  template <class Number>
  DEVICE static void read(const Number* from, int first, int end, int step, Number (&to)[kUnroll]) {
    UNROLL
    for (int i = 0; i < kUnroll; ++i) to[i] = from[first + i * step < end ? first + i * step : end - 1];
  }

  // Adds every step-th entry from `first` on. The numbers of the next rows are read while rows are being loaded.
  DEVICE void add(int first, int end, int step, int column, Sum& sum) const {
    if (first >= end) return;
    const T* const source = static_cast<const T*>(p.source) + column;
    int rows[kUnroll];
    read(p.order, first, end, step, rows);
    for (; first < end; first += kUnroll * step) {
      Pack<T, kCount> some[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) some[i] = load<T, kCount>(source + static_cast<long long>(rows[i]) * p.columns);
      read(p.order, first + kUnroll * step, end, step, rows);
      float factors[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) factors[i] = 1.0f;
      if (p.factors) {
        T narrow[kUnroll];
        read(static_cast<const T*>(p.factors), first, end, step, narrow);
        UNROLL
        for (int i = 0; i < kUnroll; ++i) factors[i] = to_float(narrow[i]);
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        if (first + i * step >= end) continue;
        float values[kCount];
        widen<T, kCount>(some[i], values);
        UNROLL
        for (int j = 0; j < kCount; ++j) sum[j] += values[j] * factors[i];
      }
    }
  }

  // Adds up the sums of the same columns over so many adjacent lanes; all of them get the sum.
  DEVICE void add_up(int lanes, Sum& sum) const {
    for (int mask = 1 << p.log_across; mask < lanes; mask *= 2) {
      UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] += shuffle_xor(sum[j], mask);
    }
  }

  DEVICE void write(int row, int column, Sum& sum) const {
    const long long at = static_cast<long long>(row) * p.columns + column;
    if (p.base) {
      float values[kCount];
      widen<T, kCount>(load<T, kCount>(static_cast<const T*>(p.base) + at), values);
      UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] += values[j];
    }
    store<T, kCount>(static_cast<T*>(p.to) + at, narrow<T, kCount>(sum));
  }

  // Calls visit(column, whether the column exists) for the lane's columns.
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
    const int log_lanes = p.log_across + p.log_side, of_warp = kWarp >> log_lanes, of_block = kWarps * of_warp;
    const int place = warp_id() * of_warp + (lane_id() >> log_lanes);
    const int side = (lane_id() >> p.log_across) & ((1 << p.log_side) - 1);
    const int first = block_x() * of_block, row = first + place;
    const int begin = row < p.rows ? p.begins[row] : 0, end = row < p.rows ? p.begins[row + 1] : 0;
    const bool is_long = end - begin > kSegmentLong << p.log_side, is_own = row < p.rows && !is_long;
    if (side == 0 && x == 0) shared.is_long[place] = is_long;
    barrier();
    each_column([=](int column, bool wanted) {
      Sum sum = {};
      if (wanted && is_own) add(begin + side, end, 1 << p.log_side, column, sum);
      add_up(1 << log_lanes, sum);
      if (wanted && is_own && side == 0) write(row, column, sum);
    });
    for (int some = 0; some < of_block; some += kWarp) {
      const int own = some + lane_id();
      for (Ballot found = ballot(own < of_block && shared.is_long[own]); found; found &= found - 1)
        add_shared(first + some + first_of(found));
    }
  }

  // Adds up one row, whose entries are divided among all warps.
  DEVICE void add_shared(int row) {
    const int begin = p.begins[row], count = p.begins[row + 1] - begin;
    const int each = (count + kWarps - 1) / kWarps, before = warp_id() * each;
    const int first = begin + (before < count ? before : count);
    const int last = begin + (before + each < count ? before + each : count);
    const int side = lane_id() >> p.log_across;
    each_column([=](int column, bool wanted) {
      Sum sum = {};
      if (wanted) add(first + side, last, kWarp >> p.log_across, column, sum);
      add_up(kWarp, sum);
      float* const mine = shared.sums[warp_id()] + lane_id() * kCount;
      UNROLL
      for (int j = 0; j < kCount; ++j) mine[j] = sum[j];
      barrier();
      if (warp_id() == 0 && side == 0 && wanted) {
        for (int warp = 1; warp < kWarps; ++warp) {
          UNROLL
          for (int j = 0; j < kCount; ++j) sum[j] += shared.sums[warp][lane_id() * kCount + j];
        }
        write(row, column, sum);
      }
      barrier();
    });
  }
};

}  // namespace
}  // namespace reformer

#define X(T, kCount)                                                    \
  KERNEL_OCCUPANCY(reformer::kSegmentThreads, reformer::kSegmentBlocks) \
  segment_sum_##T##_##kCount(reformer::SegmentSumArgs args) {           \
    SHARED reformer::SegmentSum<reformer::T, kCount>::Shared shared;    \
    reformer::grid_dependency_launch();                                 \
    reformer::grid_dependency_wait();                                   \
    reformer::SegmentSum<reformer::T, kCount>{args, shared}.run();      \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "segments.inc"
#endif
