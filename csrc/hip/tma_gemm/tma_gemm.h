// Shared by the TMA GEMM kernels and the host: arguments, and constants on which both depend.
#pragma once

#include "../device/divide.h"
#include "../device/tensor_map.h"

namespace reformer {

constexpr int kTmaDepth = 64;       // elements of depth per step: 128 bytes
constexpr int kTmaBoxBytes = 8192;  // 64 x 64 elements of the result, or of another tensor of its shape
constexpr int kTmaMostShared = 227 << 10;

// The warpgroups that multiply either compute 64 rows each of one tile, or have different tiles and take turns: while
// one of two multiplies, the other one runs the epilogue of its tile (ping-pong).
enum class TmaConsumers : int { cooperative, pingpong };

// The tensors that a program's epilogue accesses by the copy engine, and its values of channels, which are in shared
// memory. A consumer has a ring of slots, each with boxes for the tensors that are loaded, over which it writes those
// to be stored. So three or four boxes of a tensor are loaded or stored at a time, in the memory that two of each kind
// would take.
struct TmaEpilogue {
  int loaded = 0, stored = 1, channel_values = 0;

  constexpr int boxes() const { return loaded > stored ? loaded : stored; }  // of a slot
  constexpr int slots() const { return 2 * (loaded + stored) / boxes(); }
};
constexpr int kTmaMostLoaded = 2, kTmaMostStored = 2;

// A block's tile and its threads and shared memory: the ring of operands' tiles, then the consumers' slots, values of
// channels, and barriers.
//
// After the consumers come the warps that start copies: of operands and, if the epilogue loads tensors, one for each
// consumer. Where sums take more registers than each thread gets, these are a whole warpgroup, which gives its
// registers away.
struct TmaTile {
  int rows, columns, stages;
  TmaConsumers consumers;

  constexpr bool takes_turns() const { return consumers == TmaConsumers::pingpong; }
  constexpr int groups() const { return takes_turns() ? 2 : rows / 64; }
  constexpr int group_rows() const { return takes_turns() ? rows : 64; }
  constexpr bool gives_registers() const { return takes_turns() || columns > 128; }
  constexpr int threads(TmaEpilogue epilogue = {}) const {
    return groups() * 128 + (gives_registers() ? 128 : 32 * (1 + (epilogue.loaded ? groups() : 0)));
  }
  constexpr int ring_bytes() const { return stages * (rows + columns) * kTmaDepth * 2; }
  constexpr int channels_at(TmaEpilogue epilogue) const {
    return ring_bytes() + groups() * epilogue.slots() * epilogue.boxes() * kTmaBoxBytes;
  }
  constexpr int barriers_at(TmaEpilogue epilogue) const {
    return channels_at(epilogue) + epilogue.channel_values * columns * 4;
  }
  // Two for each stage, one for each consumer's turn, and two for each of its slots.
  constexpr int barriers(TmaEpilogue epilogue) const { return 2 * stages + groups() * (1 + 2 * epilogue.slots()); }
  constexpr int shared_bytes(TmaEpilogue epilogue = {}) const {
    return (barriers_at(epilogue) + barriers(epilogue) * 8 + 15) / 16 * 16;
  }
  // The tile with as many of its stages as leave room for the epilogue.
  constexpr TmaTile with(TmaEpilogue epilogue) const {
    TmaTile tile = *this;
    while (tile.stages > 1 && tile.shared_bytes(epilogue) > kTmaMostShared) --tile.stages;
    return tile;
  }
};

// The operand that both blocks of a cluster need: each block copies half of it for both.
enum class TmaShared : int { kNothing, kRows, kColumns };

// result = a b, summed over the depth. All three are matrices of 2-byte elements.
//
//               rows    columns  depth   NHWC: a lies along  b lies along  NCHW: a lies along  b lies along
//   forward     pixels  k        c       depth               depth         rows                depth
//   input_grad  pixels  c        k       depth               columns       rows                columns
//   weight_grad k       c        pixels  rows                columns       depth               depth
//
// In NHWC the pixels of all images are consecutive; in NCHW each image has matrices of its own, a tile of rows or a
// step belongs to one image, and the result of forward and input_grad lies along rows.
//
// Along x, each block (or cluster of two along z, which counts as one here) has a tile of columns and every
// row_blocks-th tile of rows; along y, a part of the steps.
struct TmaGemmArgs {
  TensorMap a, b, result;
  const void* bias;  // forward: [columns], or null
  float* partial;    // if not null, written in place of the result: [parts of the steps][rows][columns]
  int rows, columns, depth;
  int steps, steps_each;      // all steps, and those of a block
  int row_tiles, row_blocks;  // counted in clusters
  Divider column_tiles;       // counted in clusters
  TmaShared shared;
  Divider by_image;  // NCHW: tiles of rows per image; in weight_grad steps per image
  int b_resident;    // 1: all of b's tiles stay in shared memory for the block's further tiles of rows
};

constexpr int threads(int rows, int columns, TmaConsumers consumers, TmaEpilogue epilogue = {}) {
  return TmaTile{rows, columns, 1, consumers}.threads(epilogue);
}

// The arguments of a kernel that runs a program. epilogue: of each box of the result, the tensors that are loaded, then
// those that are stored.
template <class Args>
struct TmaWithTensors : Args {
  TensorMap epilogue[kTmaMostLoaded + kTmaMostStored];
};

}  // namespace reformer
