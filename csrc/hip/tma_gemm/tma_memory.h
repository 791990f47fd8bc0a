// The shape of the TMA GEMM kernels' tiles (tma_tiles.h), and a block's shared memory.
#pragma once

#include "../device/mma.h"
#include "../device/tma.h"
#include "tma_gemm.h"

#if defined(REFORMER_TMA)
namespace reformer {
namespace {

template <class T_, int kRows_, int kColumns_, int kStages, TmaConsumers kConsumers, Lines kLinesA, Lines kLinesB>
struct TmaShape {
  using T = T_;
  static constexpr TmaTile kTile{kRows_, kColumns_, kStages, kConsumers};
  static constexpr int kRows = kRows_, kColumns = kColumns_,
                       kBlocks = kTile.group_rows() / 64;  // of a consumer, 64 rows each
  static constexpr bool kTakesTurns = kTile.takes_turns(), kGivesRegisters = kTile.gives_registers();
  static constexpr bool kManySums = kBlocks * kColumns >= 384;  // 192 a thread
  using TileA = OperandTile<T, kRows, kTmaDepth, kLinesA>;
  using TileB = OperandTile<T, kColumns, kTmaDepth, kLinesB>;
  using Sums = GroupTile<T, kColumns, kBlocks>;
};

// The block's shared memory. The ring's stages have two barriers each, full and empty; likewise each consumer's slots.
// A consumer waits for its turn.
template <class Shape, class Program>
struct TmaMemory {
  static constexpr TmaTile kTile = Shape::kTile;
  static constexpr TmaEpilogue kEpilogue = Program::kEpilogue;
  static constexpr int kStages = kTile.stages, kGroups = kTile.groups();
  static constexpr int kBytesA = Shape::TileA::kBytes, kBytesB = Shape::TileB::kBytes;
  static constexpr int kSlots = kEpilogue.slots(), kOfSlot = kEpilogue.boxes() * kTmaBoxBytes;
  static constexpr int kRing = kTile.ring_bytes();
  static constexpr int kChannels = kTile.channels_at(kEpilogue), kBarriers = kTile.barriers_at(kEpilogue);
  unsigned char* memory;

  DEVICE typename Shape::TileA a(int stage) const { return {memory + stage * kBytesA}; }
  DEVICE typename Shape::TileB b(int stage) const { return {memory + kStages * kBytesA + stage * kBytesB}; }
  DEVICE unsigned char* boxes(int group, int slot) const { return memory + kRing + (group * kSlots + slot) * kOfSlot; }
  DEVICE float* channels() const { return reinterpret_cast<float*>(memory + kChannels); }

  DEVICE unsigned full(int stage) const { return tma::shared_address(memory + kBarriers + stage * 8); }
  DEVICE unsigned empty(int stage) const { return full(kStages + stage); }
  DEVICE unsigned turn(int group) const { return full(2 * kStages + group); }
  DEVICE unsigned full_boxes(int group, int slot) const {
    return full(2 * kStages + kGroups + group * 2 * kSlots + slot);
  }
  DEVICE unsigned empty_boxes(int group, int slot) const { return full_boxes(group, kSlots + slot); }

  // arrivals: of warps that have read a stage of the ring.
  DEVICE void init_barriers(int arrivals) const {
    for (int stage = 0; stage < kStages; ++stage) {
      tma::init_barrier(full(stage), 1);
      tma::init_barrier(empty(stage), arrivals);
    }
    for (int group = 0; group < kGroups; ++group) {
      tma::init_barrier(turn(group), 4);
      for (int slot = 0; slot < kSlots; ++slot) {
        tma::init_barrier(full_boxes(group, slot), 1);
        tma::init_barrier(empty_boxes(group, slot), 1);
      }
    }
    tma::publish_barriers();
  }
};

// A stage of the ring, and the parity of its barriers' phase.
template <int kStages>
struct TmaPipelineState {
  int stage = 0, parity = 0;
  DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  DEVICE void advance(int by) {
    stage += by;
    parity ^= stage / kStages & 1;
    stage %= kStages;
  }
};

}  // namespace
}  // namespace reformer
#endif
