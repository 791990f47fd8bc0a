// Matrix products of a warp: WarpTile<T, kRows, kColumns> is a tile of C += A B whose sums are distributed over the
// registers of the threads; only the two implementations know how. T is fp16, bf16, or 32 bits wide: fp32 with AMD's
// MFMA, which multiplies it exactly, or tf32 with NVIDIA's mma.sync, which rounds it to 11 bits. Sums are fp32.
//
//   OperandTile<bf16, 64, 32> a{shared_a};                        // 64 rows, a depth of 32: filled, then a barrier
//   OperandTile<bf16, 64, 32, Lines::kAlongOuter> b{shared_b};    // from a matrix [depth][columns]
//   WarpTile<bf16, 32, 32> tile;                                  // kRows and kColumns: multiples of 16
//   tile.clear();
//   for (int k = 0; k < 32; k += tile.kDepth)                     // 32 bytes: 16 elements, or 8 of fp32
//     tile.multiply(tile.load_a(a, row, k), tile.load_b(b, column, k));  // from A's row, B's column: multiples of 16
//   tile.for_each([&](int row, int column, float sum) { ... });   // within the tile; each element once per warp
//   tile.store(memory, pitch);                                    // likewise, to floats in memory
//
// All threads of the warp must call load_a, load_b and multiply.
#pragma once

#include "operand_tile.h"
#include "warp.h"

namespace reformer {

// fp32 in memory, rounded to 8 bits of exponent and 10 of mantissa when it is multiplied.
struct tf32 {
  float value;
};

}  // namespace reformer

#if defined(REFORMER_MMA)
#include "mma_sync.h"
#if defined(REFORMER_TMA)
#include "mma_wgmma.h"
#endif
#elif defined(REFORMER_MFMA)
#include "mma_mfma.h"
#else
#error "mma.h: there are matrix products for sm_80 and later, and for gfx908, gfx90a, gfx942 and gfx950"
#endif
