// Products of tiles with Hopper's TMA and wgmma: the bulk copy engine fills a ring of tiles in shared memory,
// warpgroups (the consumers) multiply them, and the engine stores the result. It also loads the tensors that a program
// in the epilogue reads. The kernel's Work defines the tiles (tma_gemm.hip, tma_windows.hip).
//
// Most of these problems are bound by reading tiles from the second-level cache. So adjacent blocks share: the two
// blocks of a cluster that have the same rows, or the same columns, load half of that operand each, for both. And while
// a block stores a tile, the copies of the next one are in flight. Source of this structure: the Hopper kernels of
// CUTLASS.
#pragma once

#include "../device/cluster.h"
#include "../device/grid_dependency.h"
#include "tma_store.h"

#if defined(REFORMER_TMA)
namespace reformer {
namespace {

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
template <class Work, class Program>
struct TmaBlock {
  using Shape = typename Work::Shape;
  using Tile = typename Work::Tile;
  using Memory = TmaMemory<Shape, Program>;
  static constexpr TmaTile kTile = Shape::kTile;
  static constexpr int kGroups = kTile.groups();
  static constexpr bool kTakesTurns = Shape::kTakesTurns;
  const Work& work;
  const Program& program;
  const Memory memory;
  int first, first_step, steps;  // this block's first tile of rows, and its steps of each tile
  bool pair;                     // it is one of two of a cluster

  // Calls own(tile) for the consumer's tiles, and other(tile) for those of the other consumer.
  template <class Own, class Other>
  DEVICE void for_each_tile_of(int group, Own own, Other other) const {
    int number = 0;
    work.for_each_tile(first, [&](const Tile& tile) {
      if (kTakesTurns && (number++ ^ group) & 1)
        other(tile);
      else
        own(tile);
    });
  }
  // The first of its rows.
  DEVICE static int row_of(const Tile& tile, int group) { return tile.row + (kTakesTurns ? 0 : group * 64); }

  // Fills the ring. By one thread.
  DEVICE void load_operands() const {
    TmaPipelineState<kTile.stages> state;
    bool with_b = true;
    work.for_each_tile(first, [&](const Tile& tile) {
      auto copies = work.copies_of(tile, first_step);
      NOT_UNROLLED
      for (int step = 0; step < work.steps_of(tile, steps); ++step) {
        copies.begin(first_step + step);
        const unsigned full = memory.full(state.stage);
        tma::wait(memory.empty(state.stage), state.parity ^ 1);
        tma::arrive_expecting(full, memory.kBytesA + (with_b ? memory.kBytesB : 0));
        copies.a(memory.a(state.stage), full);
        if (with_b) copies.b(memory.b(work.p.b_resident ? step : state.stage), full);
        copies.end();
        state.advance();
      }
      with_b = !work.p.b_resident;
    });
  }

  // Loads the epilogue's tensors for a consumer, while it multiplies and as it goes on with its epilogue. By one
  // thread.
  DEVICE void load_tensors(int group) const {
    TmaPipelineState<Memory::kSlots> state;
    const auto load = [&](const Tile& tile) {
      for_each_box(work, row_of(tile, group), [&](int row, int column, int, int) {
        const unsigned full = memory.full_boxes(group, state.stage);
        tma::wait(memory.empty_boxes(group, state.stage), state.parity ^ 1);
        tma::arrive_expecting(full, Memory::kEpilogue.loaded * kTmaBoxBytes);
        program.load(tma::shared_address(memory.boxes(group, state.stage)), full, column, row);
        state.advance();
      });
    };
    for_each_tile_of(group, load, [](const Tile&) {});
  }

  // This warp has finished reading the tiles of the stage.
  DEVICE void release(int stage) const {
    if (pair) {
      if (lane_id() < 2) tma::arrive_there(memory.empty(stage), lane_id());
    } else if (lane_id() == 0) {
      tma::arrive_there(memory.empty(stage), 0);
    }
  }

  // Multiplies the tiles of a stage after another; the products of one are in flight while the next ones are started.
  // turn: the parity of the consumer's turn.
  DEVICE void multiply(const Tile& tile, typename Shape::Sums& sums, TmaPipelineState<kTile.stages>& state, int group,
                       int turn) const {
    sums.clear();
    if constexpr (kTakesTurns) tma::wait(memory.turn(group), turn);
    int before = 0;
    for (int step = 0; step < work.steps_of(tile, steps); ++step) {
      tma::wait(memory.full(state.stage), state.parity);
      sums.start(memory.a(state.stage), kTakesTurns ? 0 : group * 64, memory.b(work.p.b_resident ? step : state.stage));
      if (step) {
        wgmma::wait<1>();
        release(before);
      }
      before = state.stage;
      state.advance();
    }
    if constexpr (kTakesTurns)  // the other one's products may be started behind these
      if (lane_id() == 0) tma::arrive(memory.turn(1 - group));
    sums.finish();
    if (!Work::kMayBeEmpty || work.steps_of(tile, steps)) release(before);
  }

  DEVICE void consume(int group, int part) const {
    auto epilogue = epilogue_of(program, work, memory);
    typename Shape::Sums sums;
    TmaPipelineState<kTile.stages> state;
    TmaSlots<Memory::kSlots> slots;
    int turn = 1 - group;  // the first consumer need not wait for its first turn
    const auto compute = [&](const Tile& tile) {
      multiply(tile, sums, state, group, turn);
      turn ^= 1;
      const int row = row_of(tile, group);
      if (Program::kRounds && work.p.partial)
        store_partial(work, sums, row);
      else
        store_result(work, tile, sums, memory, slots, group, row, epilogue);
    };
    for_each_tile_of(group, compute, [&](const Tile& tile) { state.advance(work.steps_of(tile, steps)); });
    if (thread_id() % 128 == 0) tma::wait_for_reads<0>();
    epilogue.end(memory.boxes(group, 0), group, part * kGroups + group, work.column);
  }
};

template <class Work, class Args, class Program>
DEVICE void multiply_tiles(const Args& p, const Program& program) {
  using Block = TmaBlock<Work, Program>;
  using Shape = typename Work::Shape;
  constexpr int kGroups = Block::kGroups, kConsumerWarps = kGroups * 4;
  DYNAMIC_SHARED(memory);
  const int rank = block_z(), group = wgmma::group_id();
  const bool pair = p.shared != TmaShared::kNothing;
  int column = block_x();
  const int first = divide_with_rest(column, p.column_tiles);
  if (p.shared == TmaShared::kRows) column = column * 2 + rank;
  column *= Shape::kColumns;
  const int first_step = block_y() * p.steps_each;
  const int steps = p.steps - first_step < p.steps_each ? p.steps - first_step : p.steps_each;
  const Work work{p, rank, column};
  const Block block{work, program, {memory}, first, first_step, steps, pair};

  if (thread_id() == 0) block.memory.init_barriers((Shape::kTakesTurns ? 4 : kConsumerWarps) * (pair ? 2 : 1));
  if (thread_id() == kGroups * 128) {
    tma::prefetch(p.a);
    tma::prefetch(p.b);
    tma::prefetch(p.result);
    program.prefetch();
  }
  if (pair)
    cluster_meet();
  else
    barrier();
  grid_dependency_wait();

  if (group == kGroups) {
    if constexpr (Shape::kGivesRegisters) wgmma::give_registers<Shape::kManySums ? 24 : 40>();
    const int warp = warp_id() - kConsumerWarps;
    if (lane_id() == 0) {
      if (warp == 0)
        block.load_operands();
      else if (Program::kEpilogue.loaded > 0 && warp <= kGroups)
        block.load_tensors(warp - 1);
    }
  } else {
    if constexpr (Shape::kGivesRegisters) wgmma::take_registers<Shape::kManySums ? 240 : 232>();
    block.consume(group, p.shared == TmaShared::kColumns ? first * 2 + rank : first);
  }
  if (pair) cluster_meet();  // no block may send anything to a block that has ended
}

}  // namespace
}  // namespace reformer
#endif
