// The body of kernels.cpp, compiled once for each instruction set: all kernels, and the tables of them.
#include "cpu/simd/runs.h"
#include "cpu/simd/transpose.h"

#include "copy_body.h"
#include "dots_body.h"
#include "tile_body.h"

namespace reformer::REFORMER_ISA {

template <class S, int ROWS, int... V>
void fill_tiles(DirectKernels<S>& kernels, std::integer_sequence<int, V...>) {
  kernels.vectors[ROWS - 1] = int32_t{sizeof...(V)};
  ((kernels.tile[ROWS - 1][V] = direct_tile<S, ROWS, V + 1>), ...);
}

template <class S, int M, int... N>
void fill_dots(DirectKernels<S>& kernels, std::integer_sequence<int, N...>) {
  ((kernels.dots[M][N] = direct_dots<S, M + 1, N + 1>), ...);
}

template <class S, int... ROWS, int... M>
DirectKernels<S> make_direct_kernels(std::integer_sequence<int, ROWS...>, std::integer_sequence<int, M...>) {
  DirectKernels<S> kernels{kLanes<S>, 0, {}, kDotRows, kDotCols, {}, {}};
  kernels.rows = std::max({ROWS...});
  (fill_tiles<S, ROWS>(kernels, std::make_integer_sequence<int, direct_vectors(ROWS)>{}), ...);
  (fill_dots<S, M>(kernels, std::make_integer_sequence<int, kDotCols>{}), ...);
  return kernels;
}

template <class S>
const DirectKernels<S>& direct_kernels() {
  static const DirectKernels<S> kernels =
      make_direct_kernels<S>(DirectTileRows{}, std::make_integer_sequence<int, kDotRows>{});
  return kernels;
}

template <class T>
DirectCopies<T> direct_copies() {
  return {load_planes<T>, store_planes<T>};
}

}  // namespace reformer::REFORMER_ISA
