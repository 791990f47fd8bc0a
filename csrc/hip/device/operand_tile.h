// Tiles of matrices in shared memory, laid out so that the threads of a warp hit different banks.
#pragma once

#include "types.h"

namespace reformer {

// Which of an operand's two indices runs along its lines of memory. In C = A B, summed over the depth, A's other index
// is C's row and B's other index is C's column: both are called the outer one.
enum class Lines { kAlongDepth, kAlongOuter };

// kOuter x kDepth elements in shared memory. Lines are cut into chunks of 16 bytes, the unit of copies and loads; line
// i has its chunks in another order, permuted by exclusive or, so that chunk c of 8 neighbouring lines lies in 8
// different parts of the 128 bytes that the banks serve at once. Lines 8 apart have the same order. Lines of more than
// 128 bytes are cut into panels of these, one after another. (That is also how wgmma of sm_90a wants its operands.)
template <class T, int kOuter, int kDepth, Lines kLines = Lines::kAlongDepth>
struct OperandTile {
  using Element = T;
  static constexpr bool kAlongDepth = kLines == Lines::kAlongDepth;
  static constexpr int kLineCount = kAlongDepth ? kOuter : kDepth;
  static constexpr int kChunkElements = 16 / int(sizeof(T));
  static constexpr int kChunks = (kAlongDepth ? kDepth : kOuter) / kChunkElements;  // chunks of 16 bytes a line
  static constexpr int kPanelChunks = kChunks < 8 ? kChunks : 8;
  static constexpr int kLineBytes = kPanelChunks * 16;  // in a panel
  static constexpr int kPanelBytes = kLineCount * kLineBytes;
  static constexpr int kBytes = kLineCount * kChunks * 16;
  static_assert(kChunks > 0 && ((kChunks & (kChunks - 1)) == 0 || kChunks % 8 == 0), "lines are cut evenly");

  unsigned char* memory;  // kBytes, a multiple of 16

  // Where 16 bytes of a line go.
  DEVICE unsigned char* chunk(int line, int index) const {
    constexpr int kLinesPer128Bytes = 8 / kPanelChunks;
    const int order = line / kLinesPer128Bytes & (kPanelChunks - 1);
    return memory + index / kPanelChunks * kPanelBytes + line * kLineBytes + (index % kPanelChunks ^ order) * 16;
  }

  DEVICE T* at(int outer, int depth) const {
    const int line = kAlongDepth ? outer : depth, element = kAlongDepth ? depth : outer;
    return reinterpret_cast<T*>(chunk(line, element / kChunkElements)) + element % kChunkElements;
  }
};

}  // namespace reformer
