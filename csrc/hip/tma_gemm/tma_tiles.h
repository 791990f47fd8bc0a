// Products of tiles with Hopper's TMA and wgmma: the bulk copy engine fills a ring of tiles in shared memory,
// warpgroups multiply them, and the engine stores the result. The kernel's Work defines the tiles (tma_gemm.hip,
// tma_windows.hip).
//
// Most of these problems are bound by reading tiles from the second-level cache. So adjacent blocks share: the two
// blocks of a cluster that have the same rows, or the same columns, load half of that operand each, for both. And while
// a block stores a tile, the copies of the next one are in flight. Source of this structure: the Hopper kernels of
// CUTLASS.
#pragma once

#include "../device/cluster.h"
#include "../device/grid_dependency.h"
#include "../device/mma.h"
#include "../device/tma.h"
#include "tma_gemm.h"
#include "tma_program.h"

#if defined(REFORMER_TMA)
namespace reformer {
namespace {

template <class T_, int kRows_, int kColumns_, int kStages_, Lines kLinesA, Lines kLinesB>
struct TmaShape {
  using T = T_;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = kStages_;
  static constexpr int kGroups = kRows / 64;
  static constexpr bool kGivesRegisters = tma_gemm_gives_registers(kColumns);
  using TileA = OperandTile<T, kRows, kTmaDepth, kLinesA>;
  using TileB = OperandTile<T, kColumns, kTmaDepth, kLinesB>;
};

// The ring of tiles, with two barriers for each: full and empty.
template <class Shape>
struct TmaRing {
  static constexpr int kStages = Shape::kStages;
  static constexpr int kBytesA = Shape::TileA::kBytes, kBytesB = Shape::TileB::kBytes;
  static constexpr int kStores = kStages * (kBytesA + kBytesB);
  static constexpr int kBarriers = kStores + Shape::kGroups * 2 * kTmaStoreBytes;
  unsigned char* memory;

  DEVICE typename Shape::TileA a(int stage) const { return {memory + stage * kBytesA}; }
  DEVICE typename Shape::TileB b(int stage) const { return {memory + kStages * kBytesA + stage * kBytesB}; }
  DEVICE unsigned full(int stage) const { return tma::shared_address(memory + kBarriers + stage * 8); }
  DEVICE unsigned empty(int stage) const { return full(kStages + stage); }
  DEVICE unsigned char* stores(int group) const { return memory + kStores + group * 2 * kTmaStoreBytes; }
};

// A stage of the ring, and the parity of its barriers' phase.
template <int kStages>
struct TmaPipelineState {
  int stage = 0, parity = 0;
  DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// The first line of a tile that this block copies. half: the block's rank in the cluster if two blocks copy half of the
// lines each, for both; else -1.
template <class Tile>
DEVICE int first_line(int half) {
  return half > 0 ? Tile::kLineCount / 2 : 0;
}
// The destination of that line of a panel.
template <class Tile>
DEVICE unsigned address_of(const Tile& tile, int panel, int line) {
  return tma::shared_address(tile.memory) + panel * Tile::kPanelBytes + line * 128;
}

// Copies a tile of a matrix.
template <class Tile>
DEVICE void load_tile(const TensorMap& map, const Tile& to, unsigned barrier, int outer, int depth, int half) {
  const int lines = first_line<Tile>(half);
  UNROLL
  for (int panel = 0; panel < Tile::kChunks / 8; ++panel) {
    const unsigned at = address_of(to, panel, lines);
    const int element = (Tile::kAlongDepth ? depth : outer) + panel * tma::kBoxElements;
    const int line = (Tile::kAlongDepth ? outer : depth) + lines;
    if (half < 0)
      tma::load(map, at, barrier, element, line);
    else
      tma::load_for_both(map, at, barrier, element, line);
  }
}

// Rounds and stores 64 rows, from `row` on, of the sums that mma holds in pairs, or of the program's results for them.
// Stores one box of columns at a time, via the two halves of the group's memory in turns.
template <class Work, class T, int kColumns, class Program>
DEVICE void store_result(const Work& work, const typename Work::Tile& tile, float (&sums)[kColumns / 8][4],
                         unsigned char* stores, int& half, int group, int row, Program& program) {
  const int lane = lane_id(), first_row = warp_id() % 4 * 16, column = work.column;
  const bool starts = thread_id() % 128 == 0;
  if (work.p.bias) {
    const T* bias = static_cast<const T*>(work.p.bias);
    UNROLL
    for (int box = 0; box < kColumns / 8; box += 8) {
      float two[8][2];
      UNROLL
      for (int j = 0; j < 8; ++j) {  // unconditional, so that all loads are in flight at once
        const int at = column + (box + j) * 8 + lane % 4 * 2;
        widen<T, 2>(load<T, 2>(bias + (at < work.p.columns ? at : work.p.columns - 2)), two[j]);
      }
      UNROLL
      for (int j = 0; j < 8; ++j) {
        UNROLL
        for (int e = 0; e < 4; ++e) sums[box + j][e] += two[j][e % 2];
      }
    }
  }
  UNROLL
  for (int box = 0; box < kColumns / 64; ++box) {
    if (column + box * 64 >= work.columns()) break;
    program.run(sums, box * 8, row + first_row, column + box * 64);
    unsigned char* const to = stores + half * kTmaStoreBytes;
    half ^= 1;
    if (starts) tma::wait_for_reads<1>();  // the store before the last one has finished reading this half
    tma::group_barrier(1 + group, 128);
    UNROLL
    for (int j = box * 8; j < box * 8 + 8; j += 2) {
      // Two of the four 8 x 8 matrices have the sums of the first 8 rows, two those of the next, for 2 x 8 columns.
      const int line = Work::kTransposed ? (j % 8 + lane / 16) * 8 + lane % 8 : first_row + lane % 16;
      const int chunk = Work::kTransposed ? first_row / 8 + lane / 8 % 2 : j % 8 + lane / 16;
      tma::store_matrices<Work::kTransposed>(
          tma::shared_address(to + line * 128 + (chunk ^ line % 8) * 16), narrow_pair<T>(sums[j][0], sums[j][1]),
          narrow_pair<T>(sums[j][2], sums[j][3]), narrow_pair<T>(sums[j + 1][0], sums[j + 1][1]),
          narrow_pair<T>(sums[j + 1][2], sums[j + 1][3]));
    }
    wgmma::publish();
    tma::group_barrier(1 + group, 128);
    if (starts) work.store(tile, tma::shared_address(to), row, column + box * 64);
    program.reduce(to, box, row);  // before the memory is overwritten
  }
}

// Stores the fp32 sums unchanged, if those of other blocks have to be added (split-K).
template <int kColumns, class Work>
DEVICE void store_partial(const Work& work, const float (&sums)[kColumns / 8][4], int row) {
  const int lane = lane_id();
  row += warp_id() % 4 * 16 + lane / 4;
  float* const to = work.p.partial + (static_cast<long long>(block_y()) * work.p.rows + row) * work.p.columns;
  UNROLL
  for (int j = 0; j < kColumns / 8; ++j) {
    const int at = work.partial_column(work.column + j / 8 * 64, j % 8 * 8 + lane % 4 * 2);
    if constexpr (Work::kGaps) {
      if (at >= work.p.columns) continue;
    } else {
      if (at >= work.p.columns) break;
    }
    UNROLL
    for (int e = 0; e < 4; e += 2) {
      const float two[2] = {sums[j][e], sums[j][e + 1]};
      if (row + e * 4 < work.p.rows) store<fp32, 2>(to + e * 4 * work.p.columns + at, narrow<fp32, 2>(two));
    }
  }
}

// Computes the block's tiles. program: NoProgram, or the program that runs on the sums of an NHWC result.
//
// clang-format off: a table
// Members of Work:
//   Shape, p, rank, column           the tile's shape; set by multiply_tiles(): the kernel's arguments, this block's
//                                    rank in the cluster, and the first column of its tiles
//   Tile                             a tile of rows, whose first row is `row`
//   for_each_tile(first, function)   calls function(tile) for the block's tiles of rows
//   steps_of(tile, steps)            number of the block's steps that the tile takes
//   copies_of(tile, first_step)      the copying thread's state: begin(step), a(to, barrier), b(to, barrier), end()
//   columns()                        the end of the result's columns
//   store(tile, from, row, column)   starts the store of one box of the result
//   partial_column(box, at)          the index of this column of a box among partial sums; at least p.columns if none
//   kTransposed                      true if the result lies along rows
//   kGaps                            true if some of the columns before columns() have no place among partial sums
//   kMayBeEmpty                      true if tiles may have no steps
// clang-format on
template <class Work, class Args, class Program>
DEVICE void multiply_tiles(const Args& p, const Program& program) {
  using Shape = typename Work::Shape;
  using T = typename Shape::T;
  constexpr int kColumns = Shape::kColumns, kStages = Shape::kStages;
  DYNAMIC_SHARED(memory);
  const TmaRing<Shape> ring{memory};
  const int rank = block_z(), group = wgmma::group_id();
  const bool pair = p.shared != TmaShared::kNothing;
  int column = block_x();
  const int first = divide_with_rest(column, p.column_tiles);
  if (p.shared == TmaShared::kRows) column = column * 2 + rank;
  column *= kColumns;
  const int first_step = block_y() * p.steps_each;
  const int steps = p.steps - first_step < p.steps_each ? p.steps - first_step : p.steps_each;
  const Work work{p, rank, column};

  if (thread_id() == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      tma::init_barrier(ring.full(stage), 1);
      tma::init_barrier(ring.empty(stage), Shape::kGroups * 4 * (pair ? 2 : 1));
    }
    tma::publish_barriers();
  }
  if (thread_id() == Shape::kGroups * 128) {
    tma::prefetch(p.a);
    tma::prefetch(p.b);
    tma::prefetch(p.result);
  }
  if (pair)
    cluster_meet();
  else
    barrier();
  grid_dependency_wait();

  bool with_b = true;
  TmaPipelineState<kStages> state;
  if (group == Shape::kGroups) {
    if constexpr (Shape::kGivesRegisters) wgmma::give_registers<40>();
    if (thread_id() == Shape::kGroups * 128) {
      work.for_each_tile(first, [&](const typename Work::Tile& tile) {
        auto copies = work.copies_of(tile, first_step);
        for (int step = 0; step < work.steps_of(tile, steps); ++step) {
          copies.begin(first_step + step);
          const unsigned full = ring.full(state.stage);
          tma::wait(ring.empty(state.stage), state.parity ^ 1);
          tma::arrive_expecting(full, ring.kBytesA + (with_b ? ring.kBytesB : 0));
          copies.a(ring.a(state.stage), full);
          if (with_b) copies.b(ring.b(p.b_resident ? step : state.stage), full);
          copies.end();
          state.advance();
        }
        with_b = !p.b_resident;
      });
    }
  } else {
    if constexpr (Shape::kGivesRegisters) wgmma::take_registers<232>();
    GroupTile<T, kColumns> sums;
    typename Program::template Thread<kColumns / 8> runs(program);
    runs.begin(column);
    int half = 0;
    // This warp has finished reading the tiles of the stage.
    const auto release = [&](int stage) {
      if (pair) {
        if (lane_id() < 2) tma::arrive_there(ring.empty(stage), lane_id());
      } else if (lane_id() == 0) {
        tma::arrive_there(ring.empty(stage), 0);
      }
    };
    work.for_each_tile(first, [&](const typename Work::Tile& tile) {
      sums.clear();
      int before = 0;
      for (int step = 0; step < work.steps_of(tile, steps); ++step) {
        tma::wait(ring.full(state.stage), state.parity);
        sums.start(ring.a(state.stage), group * 64, ring.b(p.b_resident ? step : state.stage));
        if (step) {
          wgmma::wait<1>();
          release(before);
        }
        before = state.stage;
        state.advance();
      }
      sums.finish();
      if (!Work::kMayBeEmpty || work.steps_of(tile, steps)) release(before);
      if (p.partial)
        store_partial<kColumns>(work, sums.sums(), tile.row + group * 64);
      else
        store_result<Work, T, kColumns>(work, tile, sums.sums(), ring.stores(group), half, group, tile.row + group * 64,
                                        runs);
    });
    if (thread_id() % 128 == 0) tma::wait_for_reads<0>();
    const int part = p.shared == TmaShared::kColumns ? first * 2 + rank : first;
    runs.end(ring.stores(group), group, part * Shape::kGroups + group, column);
  }
  if (pair) cluster_meet();  // no block may send anything to a block that has ended
}

}  // namespace
}  // namespace reformer
#endif
