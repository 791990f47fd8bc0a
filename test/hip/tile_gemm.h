// What tile_gemm.hip and its tests share: C = A B.
#pragma once

namespace reformer {

struct TileGemmArgs {
  const void* a;             // [rows][depth], or [depth][rows] where lines are along the outer index
  const void* b;             // [columns][depth], or [depth][columns]
  float* c;                  // [rows][columns]
  int rows, columns, depth;  // multiples of 16 bytes of elements
};

}  // namespace reformer
