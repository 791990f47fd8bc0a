// The gradient of an embedding table: row r is the sum of the gradients of all entries whose id is r, in an order that
// depends only on the ids. One pass: ids are not sorted, and rows without ids are zeroed on the way. A block has every
// n-th row, so that frequent words, which are neighbours in most vocabularies, are shared by all blocks.
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
  static constexpr int kColumns = kWarp * kCount;   // columns per warp and access
  static constexpr int kChunks = kEmbeddingChunks;  // of these, whose loads are in flight at once
  // Loads of a thread that are in flight at once: of ids (more take too many scalar registers on AMD's GPUs), and of
  // entries' gradients.
  static constexpr int kIds = kWarp == 32 ? 8 : 2, kEntries = 2;
  static constexpr int kLong = 8;  // all warps share a row with more entries
  static constexpr int kHits = 2048;

  // An entry whose id is one of the block's rows.
  struct Hit {
    int at;
    int row;  // number among the block's rows
  };
  struct Shared {
    Hit hits[kHits];
    int count[kWarps];
    bool is_long[kEmbeddingRows];
    float sums[kWarps][kColumns];
  };

  const EmbeddingGradArgs& p;
  Shared& shared;
  const int lane = lane_id(), warp = warp_id(), table = block_x() / p.groups, group = block_x() % p.groups;
  const Id* const ids = static_cast<const Id*>(p.ids) + static_cast<long long>(table) * p.count;
  const T* const grad = static_cast<const T*>(p.grad) + static_cast<long long>(table) * p.count * p.columns;
  const int first_row = table * p.rows, first_column = block_y() * p.columns_each;
  const int begin = first_column + lane * kCount;  // the lane's first column
  const int end = first_column + p.columns_each < p.columns ? first_column + p.columns_each : p.columns;

  // Number of the id's row among the block's rows, if it is one of those that are `part` modulo 2^log; else -1.
  DEVICE int row_of(Id id, int part, int log) const {
    const unsigned long long row = static_cast<unsigned long long>(id) - first_row;  // large, if it is negative
    if (row >= static_cast<unsigned>(p.rows) || id == p.padding) return -1;
    int rest = int(row);
    const int number = divide_with_rest(rest, p.by_groups);
    return rest == group && (number & ((1 << log) - 1)) == part ? number : -1;
  }

  // first, first + 1 ... up to `last`, which is left out.
  struct Range {
    int first, last;
  };
  // The warp's share of so many numbers.
  DEVICE Range share_of(int count) const {
    const int each = (count + kWarps - 1) / kWarps, first = warp * each;
    return {first, first + each < count ? first + each : count};
  }

  // Calls visit(ballot of the lanes with a hit, the first lane's entry, the lane's row or -1) for these entries.
  template <int kUnroll, class Visit>
  DEVICE void scan(int part, int log, Range of, Visit visit) const {
    for (int at = of.first; at < of.last; at += kUnroll * kWarp) {
      Id some[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int own = at + i * kWarp + lane;
        some[i] = own < of.last ? ids[own] : Id(-1);
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int row = row_of(some[i], part, log);
        const Ballot found = ballot(row >= 0);
        if (found) visit(found, at + i * kWarp, row);
      }
    }
  }

  // Lists the hits of these rows in the order of the ids, if there is room for them, and returns their number. Each
  // warp lists its hits in a place of its own, and moves them up once all warps' numbers are known. Where a warp has
  // more of them than its place has room for, all ids are read again.
  DEVICE int list(int part, int log) {
    constexpr int kRounds = kHits / kWarps / kWarp, kPlace = kRounds * kWarp;
    const Range own = share_of(p.count);
    Hit* const place = shared.hits + warp * kPlace;
    int count = 0;
    scan<kIds>(part, log, own, [&](Ballot found, int at, int row) {
      const int to = count + bits_below(found, lane);
      if (row >= 0 && to < kPlace) place[to] = {at + lane, row};
      count += bits_of(found);
    });
    if (lane == 0) shared.count[warp] = count;
    barrier();
    int before = 0, all = 0, most = 0;
    UNROLL
    for (int i = 0; i < kWarps; ++i) {
      if (i < warp) before += shared.count[i];
      all += shared.count[i];
      if (shared.count[i] > most) most = shared.count[i];
    }
    if (most <= kPlace) {
      int at[kRounds], row[kRounds];
      UNROLL
      for (int i = 0; i < kRounds; ++i) {
        const int own = i * kWarp + lane;
        at[i] = own < count ? place[own].at : 0;
        row[i] = own < count ? place[own].row : 0;
      }
      barrier();
      UNROLL
      for (int i = 0; i < kRounds; ++i)
        if (const int own = i * kWarp + lane; own < count) shared.hits[before + own] = {at[i], row[i]};
    } else if (all <= kHits) {
      scan<kIds>(part, log, own, [&](Ballot found, int at, int row) {
        if (row >= 0) shared.hits[before + bits_below(found, lane)] = {at + lane, row};
        before += bits_of(found);
      });
    }
    barrier();
    return all;
  }

  using Sums = float[kChunks][kCount];

  // Adds the gradients of the entries place(lane) for the lanes of the ballot, in order.
  template <class Place>
  DEVICE void add(Ballot found, Place place, Sums& sums) const {
    while (found) {
      Pack<T, kCount> some[kEntries][kChunks];
      int count = 0, next = 0;
      UNROLL
      for (int i = 0; i < kEntries; ++i) {
        if (found) next = first_of(found), ++count;  // else read the last one again, so that no load waits for another
        found &= found - 1;
        const T* const from = grad + static_cast<long long>(place(next)) * p.columns + begin;
        UNROLL
        for (int c = 0; c < kChunks; ++c)
          if (begin + c * kColumns < end) some[i][c] = load<T, kCount>(from + c * kColumns);
      }
      UNROLL
      for (int i = 0; i < kEntries; ++i) {
        UNROLL
        for (int c = 0; c < kChunks; ++c) {
          if (i >= count || begin + c * kColumns >= end) continue;
          float values[kCount];
          widen<T, kCount>(some[i][c], values);
          UNROLL
          for (int j = 0; j < kCount; ++j) sums[c][j] += values[j];
        }
      }
    }
  }

  // Writes the columns of chunk `c`.
  DEVICE void write(int row, int c, int times, float (&sum)[kCount]) const {
    const int column = begin + c * kColumns;
    if (column >= end) return;
    if (p.by_frequency && times > 1) {
      UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] /= float(times);
    }
    const int number = first_row + group + row * p.groups;
    T* const to = static_cast<T*>(p.to) + static_cast<long long>(number) * p.columns + column;
    if (p.adds) {
      float values[kCount];
      widen<T, kCount>(load<T, kCount>(to), values);
      UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] += values[j];
    }
    if (p.is_large)
      store_streaming<T, kCount>(to, narrow<T, kCount>(sum));
    else
      store<T, kCount>(to, narrow<T, kCount>(sum));
  }

  // Calls visit(ballot of the lanes whose hit is of this row, number of the first lane's hit) for these hits.
  template <class Visit>
  DEVICE void each_hit(int row, Range of, Visit visit) const {
    NOT_UNROLLED
    for (int hit = of.first; hit < of.last; hit += kWarp) {
      const int own = hit + lane;
      visit(ballot(own < of.last && shared.hits[own < of.last ? own : hit].row == row), hit);
    }
  }
  DEVICE int times_of(int row, int hits) const {
    int times = 0;
    each_hit(row, {0, hits}, [&](Ballot found, int) { times += bits_of(found); });
    return times;
  }
  DEVICE void add_hits(int row, Range of, Sums& sums) const {
    each_hit(row, of, [&](Ballot found, int hit) {
      add(found, [&](int lane_of) { return shared.hits[hit + lane_of].at; }, sums);
    });
  }

  // Distributes rows over the warps, and the entries of rows with many of them.
  DEVICE void add_listed(int part, int log, int rows, int hits) {
    for (int row = part + (warp << log); row < rows; row += kWarps << log) {
      const int times = times_of(row, hits);
      if (lane == 0) shared.is_long[row] = times > kLong;
      if (times > kLong || (times == 0 && p.adds)) continue;
      Sums sums = {};
      if (times) add_hits(row, {0, hits}, sums);
      UNROLL
      for (int c = 0; c < kChunks; ++c) write(row, c, times, sums[c]);
    }
    barrier();
    for (int some = 0; some < rows; some += kWarp << log) {
      const int own = part + some + (lane << log);
      for (Ballot found = ballot(own < rows && shared.is_long[own < rows ? own : part]); found; found &= found - 1) {
        const int row = part + some + (first_of(found) << log);
        Sums sums = {};
        add_hits(row, share_of(hits), sums);
        add_up(row, p.by_frequency ? times_of(row, hits) : 0, sums);
      }
    }
  }

  // Adds up one row whose entries are too many for the list.
  DEVICE void add_unlisted(int row, int log, int times) {
    Sums sums = {};
    scan<1>(row, log, share_of(p.count),
            [&](Ballot found, int at, int) { add(found, [&](int of) { return at + of; }, sums); });
    add_up(row, times, sums);
  }

  // Adds up the warps' sums of a row, and writes them.
  DEVICE void add_up(int row, int times, Sums& sums) {
    UNROLL
    for (int c = 0; c < kChunks; ++c) {
      if (first_column + c * kColumns >= end) continue;
      UNROLL
      for (int j = 0; j < kCount; ++j) shared.sums[warp][lane * kCount + j] = sums[c][j];
      barrier();
      if (warp == 0) {
        NOT_UNROLLED
        for (int other = 1; other < kWarps; ++other) {
          UNROLL
          for (int j = 0; j < kCount; ++j) sums[c][j] += shared.sums[other][lane * kCount + j];
        }
        write(row, c, times, sums[c]);
      }
      barrier();
    }
  }

  // Goes through halves, quarters, and so on, of the rows, if their hits are too many.
  DEVICE void run() {
    const int rows = divide(p.rows - 1 - group, p.by_groups) + 1;
    for (int part = 0, log = 0;;) {
      const int hits = list(part, log);
      if (hits > kHits && part + (1 << log) < rows) {
        ++log;
        continue;
      }
      if (hits > kHits)
        add_unlisted(part, log, hits);
      else
        add_listed(part, log, rows, hits);
      while (log && part >> (log - 1) & 1) part -= 1 << --log;
      if (log == 0) return;
      part += 1 << (log - 1);
    }
  }
};

}  // namespace
}  // namespace reformer

#define X(T, Id, kCount)                                                              \
  KERNEL_OCCUPANCY(reformer::kEmbeddingThreads, reformer::kEmbeddingBlocks)           \
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
