// Tiles of matrices in shared memory, with a layout in which the threads of a warp access different banks.
#pragma once

#include "types.h"

namespace reformer {

// Which of an operand's two indices runs along its lines of memory. In C = A B, summed over the depth, the other index
// of A is C's row and that of B is C's column; both are called the outer index.
enum class Lines { kAlongDepth, kAlongOuter };

// kOuter x kDepth elements in shared memory. Lines are divided into chunks of 16 bytes, the unit of copies and loads.
// The order of the chunks of line i is permuted by exclusive or, so that chunk c of 8 neighbouring lines is in 8
// different parts of the 128 bytes that the banks serve at once. Lines 8 apart have the same order. Lines of more than
// 128 bytes are divided into panels of 128 bytes, one after another. (wgmma of sm_90a requires this layout, too.)
template <class T, int kOuter, int kDepth, Lines kLines = Lines::kAlongDepth>
struct OperandTile {
  using Element = T;
  static constexpr bool kAlongDepth = kLines == Lines::kAlongDepth;
  static constexpr int kLineCount = kAlongDepth ? kOuter : kDepth;
  static constexpr int kChunkElements = 16 / int(sizeof(T));
  static constexpr int kChunks = (kAlongDepth ? kDepth : kOuter) / kChunkElements;  // chunks of 16 bytes per line
  static constexpr int kPanelChunks = kChunks < 8 ? kChunks : 8;
  static constexpr int kLineBytes = kPanelChunks * 16;  // within a panel
  static constexpr int kPanelBytes = kLineCount * kLineBytes;
  static constexpr int kBytes = kLineCount * kChunks * 16;
  static_assert(kChunks > 0 && ((kChunks & (kChunks - 1)) == 0 || kChunks % 8 == 0), "lines are cut evenly");

  unsigned char* memory;  // kBytes, a multiple of 16

  // The address of 16 bytes of a line.
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
