// A matrix product out of async_copy.h and mma.h, for tests of both: a block computes 2 x 2 warps' tiles, and copies
// the operands of its next step while it multiplies.
#include "tile_gemm.h"

#include "async_copy.h"
#include "mma.h"

namespace reformer {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

#if defined(REFORMER_MMA)
using single = tf32;
#else
using single = fp32;
#endif

constexpr Lines along_depth = Lines::kAlongDepth, along_outer = Lines::kAlongOuter;

// Copies the part of an operand that a step needs; zeros outside.
template <class Tile>
DEVICE void copy_operand(const Tile& to, const void* from, int outer, int k, int outers, int depth) {
  constexpr int kElements = Tile::kChunkElements;
  const int first_line = Tile::kAlongDepth ? outer : k, lines = Tile::kAlongDepth ? outers : depth;
  const int first = Tile::kAlongDepth ? k : outer, length = Tile::kAlongDepth ? depth : outers;
  for (int i = thread_id(); i < Tile::kLineCount * Tile::kChunks; i += kThreads) {
    const int line = i / Tile::kChunks, chunk = i % Tile::kChunks, element = first + chunk * kElements;
    const bool inside = first_line + line < lines && element < length;
    const long long offset = static_cast<long long>(first_line + line) * length + element;
    async_copy<16>(to.chunk(line, chunk), static_cast<const typename Tile::Element*>(from) + (inside ? offset : 0),
                   inside);
  }
}

template <class T, int kRows, int kColumns, Lines kLinesA, Lines kLinesB>
DEVICE void tile_gemm(const TileGemmArgs& p) {
  constexpr int kDepth = 64 / int(sizeof(T));
  using TileA = OperandTile<T, 2 * kRows, kDepth, kLinesA>;
  using TileB = OperandTile<T, 2 * kColumns, kDepth, kLinesB>;
  DYNAMIC_SHARED(shared);  // twice TileA and TileB
  auto a = [&](int stage) { return TileA{shared + stage * TileA::kBytes}; };
  auto b = [&](int stage) { return TileB{shared + 2 * TileA::kBytes + stage * TileB::kBytes}; };
  const int first_row = block_y() * 2 * kRows, first_column = block_x() * 2 * kColumns;
  const int row = warp_id() / 2 * kRows, column = warp_id() % 2 * kColumns;

  WarpTile<T, kRows, kColumns> tile;
  tile.clear();
  copy_operand(a(0), p.a, first_row, 0, p.rows, p.depth);
  copy_operand(b(0), p.b, first_column, 0, p.columns, p.depth);
  async_commit();
  for (int k = 0, stage = 0; k < p.depth; k += kDepth, stage ^= 1) {
    if (k + kDepth < p.depth) {
      copy_operand(a(stage ^ 1), p.a, first_row, k + kDepth, p.rows, p.depth);
      copy_operand(b(stage ^ 1), p.b, first_column, k + kDepth, p.columns, p.depth);
    }
    async_commit();  // of nothing, in the last step, so that one group stays pending
    async_wait<1>();
    barrier();
    UNROLL
    for (int i = 0; i < kDepth; i += tile.kDepth)
      tile.multiply(tile.load_a(a(stage), row, i), tile.load_b(b(stage), column, i));
    barrier();  // before this stage is written again
  }
  tile.for_each([&](int i, int j, float sum) {
    const int r = first_row + row + i, c = first_column + column + j;
    if (r < p.rows && c < p.columns) p.c[static_cast<long long>(r) * p.columns + c] = sum;
  });
}

}  // namespace
}  // namespace reformer

#define X(T, kRows, kColumns, kLinesA, kLinesB)                                                    \
  KERNEL(reformer::kThreads)                                                                       \
  tile_gemm_##T##_##kRows##_##kColumns##_##kLinesA##_##kLinesB(reformer::TileGemmArgs args) {      \
    reformer::tile_gemm<reformer::T, kRows, kColumns, reformer::kLinesA, reformer::kLinesB>(args); \
  }
#define OF_ALL_TYPES(...) X(fp16, __VA_ARGS__) X(bf16, __VA_ARGS__) X(single, __VA_ARGS__)
OF_ALL_TYPES(32, 32, along_depth, along_depth)
OF_ALL_TYPES(32, 32, along_outer, along_depth)
OF_ALL_TYPES(32, 32, along_depth, along_outer)
OF_ALL_TYPES(32, 64, along_outer, along_outer)
OF_ALL_TYPES(16, 64, along_depth, along_depth)
OF_ALL_TYPES(16, 16, along_outer, along_outer)
