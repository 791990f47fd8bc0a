// The order in which a block with several tiles copies and computes them.
#pragma once

#include "../device/async_copy.h"
#include "../device/grid_dependency.h"

namespace reformer {

// Double buffering over the tiles first, first + step, ... below `tiles`. fill(place_of(tile), buffer) starts the
// copies of a tile; meanwhile compute(place_of(tile), buffer) computes the previous tile. prepare() runs while the
// first tile is copied. buffer: 0 or 1, the half of the shared memory.
template <class PlaceOf, class Fill, class Prepare, class Compute>
DEVICE void pipeline_tiles(int first, int tiles, int step, const PlaceOf& place_of, const Fill& fill,
                           const Prepare& prepare, const Compute& compute) {
  int tile = first, buffer = 0;
  grid_dependency_wait();
  fill(place_of(tile), buffer);
  async_commit();
  prepare();
  for (; tile < tiles; tile += step, buffer ^= 1) {
    if (tile + step < tiles) fill(place_of(tile + step), buffer ^ 1);
    async_commit();
    async_wait<1>();
    barrier();
    compute(place_of(tile), buffer);
    barrier();
  }
}

}  // namespace reformer
