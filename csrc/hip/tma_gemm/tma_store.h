// How a consumer of tma_tiles.h stores its sums: rounded, by a program, or as partial sums.
#pragma once

#include "tma_memory.h"
#include "tma_program.h"

#if defined(REFORMER_TMA)
namespace reformer {
namespace {

// A consumer's thread if there is no program: rounds the sums.
template <class Work>
class TmaRounds {
  using T = typename Work::Shape::T;
  static constexpr int kColumns = Work::Shape::kColumns;

 public:
  DEVICE explicit TmaRounds(const Work& work) : work_(work) {}

  // Adds the bias to the tile's sums.
  DEVICE void begin(typename Work::Shape::Sums& sums) const {
    if (!work_.p.bias) return;
    const T* bias = static_cast<const T*>(work_.p.bias);
    UNROLL
    for (int box = 0; box < kColumns / 8; box += 8) {
      float two[8][2];
      UNROLL
      for (int j = 0; j < 8; ++j) {  // unconditional, so that all loads are in flight at once
        const int at = work_.column + (box + j) * 8 + lane_id() % 4 * 2;
        widen<T, 2>(load<T, 2>(bias + (at < work_.p.columns ? at : work_.p.columns - 2)), two[j]);
      }
      UNROLL
      for (int j = 0; j < 8; ++j) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          UNROLL
          for (int block = 0; block < Work::Shape::kBlocks; ++block) sums.sums(block)[box + j][e] += two[j][e % 2];
        }
      }
    }
  }
  DEVICE void run(const float (&sums)[kColumns / 8][4], int box, unsigned char* to, int, int) const {
    UNROLL
    for (int j = box * 8; j < box * 8 + 8; j += 2)
      tma::store_matrices<Work::kTransposed>(
          tma::shared_address(to + place_in_box<Work::kTransposed>(j)), narrow_pair<T>(sums[j][0], sums[j][1]),
          narrow_pair<T>(sums[j][2], sums[j][3]), narrow_pair<T>(sums[j + 1][0], sums[j + 1][1]),
          narrow_pair<T>(sums[j + 1][2], sums[j + 1][3]));
  }
  DEVICE void store(const typename Work::Tile& tile, unsigned from, int column, int row) const {
    work_.store(tile, from, row, column);
  }
  DEVICE void reduce(const unsigned char*, int, int) const {}
  DEVICE void end(unsigned char*, int, int, int) const {}

 private:
  const Work& work_;
};
// If there is one.
template <class Work, class Program>
class TmaRuns : public Program::template Thread<Work::Shape::kColumns> {
  using Base = typename Program::template Thread<Work::Shape::kColumns>;

 public:
  DEVICE TmaRuns(const Program& program, int column, float* channels, int threads)
      : Base(program, column, channels, threads) {}
  DEVICE void begin(typename Work::Shape::Sums&) const {}
  DEVICE void store(const typename Work::Tile&, unsigned from, int column, int row) const {
    Base::store(from, column, row);
  }
};

template <class Work, class Memory>
DEVICE TmaRounds<Work> epilogue_of(const NoProgram&, const Work& work, const Memory&) {
  return TmaRounds<Work>(work);
}
template <class Work, class Memory, class Program>
DEVICE auto epilogue_of(const RunsProgram<Program>& program, const Work& work, const Memory& memory) {
  constexpr int kThreads = Memory::kGroups * 128;
  TmaRuns<Work, RunsProgram<Program>> runs(program, work.column, memory.channels(), kThreads);
  if constexpr (Program::kChannelValues > 0) tma::group_barrier(1 + Memory::kGroups, kThreads);
  return runs;
}

// Calls function(row, column, number of 64 rows, number of 64 columns) for the boxes of the rows from `row` on that a
// consumer computes.
template <class Work, class Function>
DEVICE void for_each_box(const Work& work, int row, Function function) {
  UNROLL
  for (int block = 0; block < Work::Shape::kBlocks; ++block) {
    UNROLL
    for (int box = 0; box < Work::Shape::kColumns / 64; ++box) {
      const int column = work.column + box * 64;
      if (column < work.columns()) function(row + block * 64, column, block, box);
    }
  }
}

// The slot of a consumer's next boxes, and the one that it has stored last; -1 if there is none.
template <int kSlots>
struct TmaSlots {
  TmaPipelineState<kSlots> next;
  int last = -1;
};

// Stores a consumer's rows, from `row` on.
template <class Work, class Memory, class Thread>
DEVICE void store_result(const Work& work, const typename Work::Tile& tile, typename Work::Shape::Sums& sums,
                         const Memory& memory, TmaSlots<Memory::kSlots>& slots, int group, int row, Thread& thread) {
  constexpr bool kLoads = Memory::kEpilogue.loaded > 0;
  const bool starts = thread_id() % 128 == 0;
  thread.begin(sums);
  for_each_box(work, row, [&](int box_row, int column, int block, int box) {
    const int slot = slots.next.stage;
    unsigned char* const boxes = memory.boxes(group, slot);
    if constexpr (kLoads) tma::wait(memory.full_boxes(group, slot), slots.next.parity);
    thread.run(sums.sums(block), box, boxes, box_row + warp_id() % 4 * 16, column);
    wgmma::publish();
    if constexpr (!kLoads)
      if (starts) tma::wait_for_reads<0>();  // behind the barrier the other slot may be overwritten
    tma::group_barrier(1 + group, 128);
    if (starts) {
      thread.store(tile, tma::shared_address(boxes), column, box_row);
      if constexpr (kLoads) {
        // The last slot's results are stored then, and behind the barrier no thread reduces them any more.
        tma::wait_for_reads<Memory::kEpilogue.stored>();
        if (slots.last >= 0) tma::arrive(memory.empty_boxes(group, slots.last));
      }
    }
    thread.reduce(boxes, box, box_row);
    slots.last = slot;
    slots.next.advance();
  });
}

// Stores the fp32 sums unchanged, if those of other blocks have to be added (split-K).
template <class Work>
DEVICE void store_partial(const Work& work, typename Work::Shape::Sums& sums, int row) {
  const int lane = lane_id();
  row += warp_id() % 4 * 16 + lane / 4;
  float* const to = work.p.partial + static_cast<long long>(block_y()) * work.p.rows * work.p.columns;
  UNROLL
  for (int j = 0; j < Work::Shape::kColumns / 8; ++j) {
    const int at = work.partial_column(work.column + j / 8 * 64, j % 8 * 8 + lane % 4 * 2);
    if constexpr (Work::kGaps) {
      if (at >= work.p.columns) continue;
    } else {
      if (at >= work.p.columns) break;
    }
    UNROLL
    for (int block = 0; block < Work::Shape::kBlocks; ++block) {
      UNROLL
      for (int e = 0; e < 4; e += 2) {
        const int of_row = row + block * 64 + e * 4;
        const float two[2] = {sums.sums(block)[j][e], sums.sums(block)[j][e + 1]};
        if (of_row < work.p.rows)
          store<fp32, 2>(to + static_cast<long long>(of_row) * work.p.columns + at, narrow<fp32, 2>(two));
      }
    }
  }
}

}  // namespace
}  // namespace reformer
#endif
