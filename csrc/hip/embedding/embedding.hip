// The gradient of an embedding table: row r is the sum of the gradients of all entries whose id is r, added up in
// order. One pass: ids are not sorted, and rows without ids are zeroed on the way.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "../device/warp.h"
#include "embedding_args.h"

namespace reformer {
namespace {

using int32 = int;
using int64 = long long;

template <class T, class Id, int kCount>
struct EmbeddingGrad {
  static constexpr int kWarps = kEmbeddingThreads / kWarp;
  static constexpr int kColumns = kWarp * kCount;  // columns per warp and access
  static constexpr int kChunks = kCount > 1 ? 4 : 2,
                       kAtOnce = kChunks * kColumns;  // columns per warp whose loads are in flight at once
  static constexpr int kUnroll = 8, kRows = 2;        // ids, and rows of gradients, in flight at once

  static constexpr int kHits = kWarps * kEmbeddingHits;

  // The matches: index of the id, and which of the block's rows it matches. First each warp's own, then all in order.
  struct Hit {
    int at;
    int row;
  };
  struct Shared {
    Hit own[kWarps][kEmbeddingHits], all[kHits];
    int count[kWarps];
    float sums[kWarps][kColumns];
  };

  const EmbeddingGradArgs& p;
  Shared& shared;
  const int lane = lane_id(), warp = warp_id(), table = block_x() / p.blocks_each;
  const Id* const ids = static_cast<const Id*>(p.ids) + static_cast<long long>(table) * p.count;
  const T* const grad = static_cast<const T*>(p.grad) + static_cast<long long>(table) * p.count * p.columns;

  DEVICE bool is_wanted(Id id, int low, int high) const { return id >= low && id < high && id != p.padding; }

  // Calls visit(ballot of the lanes whose id is one of these rows, the first lane's index, the lane's id) for the
  // warp's share of the ids.
  template <class Visit>
  DEVICE void scan(int low, int high, Visit visit) const {
    const int each = (p.count + kWarps - 1) / kWarps, first = warp * each;
    const int end = first + each < p.count ? first + each : p.count;
    for (int at = first; at < end; at += kUnroll * kWarp) {
      Id some[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int own = at + i * kWarp + lane;
        some[i] = own < end ? ids[own] : Id(-1);
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const Ballot found = ballot(is_wanted(some[i], low, high));
        if (found) visit(found, at + i * kWarp, some[i]);
      }
    }
  }

  // Lists the matches of these rows and returns their number; kHits + 1 if there is no room for them.
  DEVICE int list(int low, int high) {
    int count = 0;
    scan(low, high, [&](Ballot found, int first, Id id) {
      const int place = count + bits_below(found, lane);
      if (place < kEmbeddingHits && found >> lane & 1) shared.own[warp][place] = {first + lane, int(id)};
      count += bits_of(found);
    });
    if (lane == 0) shared.count[warp] = count;
    barrier();
    int before = 0, all = 0;
    bool fits = true;
    UNROLL
    for (int i = 0; i < kWarps; ++i) {
      const int of_warp = shared.count[i];
      if (i < warp) before += of_warp;
      all += of_warp;
      fits = fits && of_warp <= kEmbeddingHits;
    }
    if (!fits) return kHits + 1;
    for (int i = lane; i < count; i += kWarp) shared.all[before + i] = shared.own[warp][i];
    barrier();
    return all;
  }

  using Sums = float[kChunks][kCount];

  // Adds the gradients at place(lane) for the lanes of the ballot, in order, for the columns from `column` on and
  // before `end`.
  template <class Place>
  DEVICE void add(Ballot found, int column, int end, Place place, Sums& sums) const {
    while (found) {
      Pack<T, kCount> some[kRows][kChunks];
      int count = 0;
      UNROLL
      for (int i = 0; i < kRows; ++i) {
        if (!found) continue;
        const T* const from = grad + static_cast<long long>(place(first_of(found))) * p.columns;
        UNROLL
        for (int c = 0; c < kChunks; ++c)
          if (column + c * kColumns < end) some[i][c] = load<T, kCount>(from + column + c * kColumns);
        found &= found - 1;
        ++count;
      }
      UNROLL
      for (int i = 0; i < kRows; ++i) {
        UNROLL
        for (int c = 0; c < kChunks; ++c) {
          if (i >= count || column + c * kColumns >= end) continue;
          float values[kCount];
          widen<T, kCount>(some[i][c], values);
          UNROLL
          for (int j = 0; j < kCount; ++j) sums[c][j] += values[j];
        }
      }
    }
  }

  DEVICE void write(int row, int column, int end, int times, float (&sum)[kCount]) const {
    if (column >= end) return;
    if (p.by_frequency && times > 1) {
      UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] /= float(times);
    }
    const long long at = static_cast<long long>(row) * p.columns + column;
    T* const to = static_cast<T*>(p.to) + at;
    if (p.adds) {
      float values[kCount];
      widen<T, kCount>(load<T, kCount>(to), values);
      UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] += values[j];
    }
    store<T, kCount>(to, narrow<T, kCount>(sum));
  }

  // Distributes these rows over the warps.
  DEVICE void add_listed(int low, int high, int hits, int begin, int end) const {
    for (int row = low + warp; row < high; row += kWarps)
      for (int first = begin; first < end; first += kAtOnce) {
        const int column = first + lane * kCount;
        Sums sums = {};
        int times = 0;
        for (int hit = 0; hit < hits; hit += kWarp) {
          const int own = hit + lane;
          const Ballot found = ballot(own < hits && shared.all[own < hits ? own : 0].row == row);
          times += bits_of(found);
          add(found, column, end, [&](int of) { return shared.all[hit + of].at; }, sums);
        }
        UNROLL
        for (int c = 0; c < kChunks; ++c) write(row, column + c * kColumns, end, times, sums[c]);
      }
  }

  // Adds up one row, whose ids are divided among all warps.
  DEVICE void add_shared(int row, int begin, int end) {
    int times = 0;
    for (int i = 0; i < kWarps; ++i) times += shared.count[i];
    for (int first = begin; first < end; first += kAtOnce) {
      const int column = first + lane * kCount;
      Sums sums = {};
      scan(row, row + 1,
           [&](Ballot found, int at, Id) { add(found, column, end, [&](int of) { return at + of; }, sums); });
      UNROLL
      for (int c = 0; c < kChunks; ++c) {
        UNROLL
        for (int j = 0; j < kCount; ++j) shared.sums[warp][lane * kCount + j] = sums[c][j];
        barrier();
        if (warp == 0) {
          for (int other = 1; other < kWarps; ++other) {
            UNROLL
            for (int j = 0; j < kCount; ++j) sums[c][j] += shared.sums[other][lane * kCount + j];
          }
          write(row, column + c * kColumns, end, times, sums[c]);
        }
        barrier();
      }
    }
  }

  DEVICE void run() {
    int low = table * p.rows + block_x() % p.blocks_each * p.rows_each;
    const int end_of_table = (table + 1) * p.rows;
    const int last = low + p.rows_each < end_of_table ? low + p.rows_each : end_of_table;
    const int begin = block_y() * p.columns_each;
    const int end = begin + p.columns_each < p.columns ? begin + p.columns_each : p.columns;
    while (low < last) {
      int high = last, hits = list(low, high);
      while (hits > kHits && high - low > 1) {  // process fewer rows at once
        high = low + (high - low) / 2;
        barrier();
        hits = list(low, high);
      }
      if (hits > kHits)
        add_shared(low, begin, end);
      else
        add_listed(low, high, hits, begin, end);
      barrier();
      low = high;
    }
  }
};

}  // namespace
}  // namespace reformer

#define X(T, Id, kCount)                                                              \
  KERNEL(reformer::kEmbeddingThreads)                                                 \
  embedding_grad_##T##_##Id##_##kCount(reformer::EmbeddingGradArgs args) {            \
    SHARED reformer::EmbeddingGrad<reformer::T, reformer::Id, kCount>::Shared shared; \
    reformer::grid_dependency_launch();                                               \
    reformer::grid_dependency_wait();                                                 \
    reformer::EmbeddingGrad<reformer::T, reformer::Id, kCount>{args, shared}.run();   \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "embedding.inc"
#endif
