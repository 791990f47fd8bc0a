// The order in which a block that has several tiles copies and computes them.
#pragma once

#include "../device/async_copy.h"
#include "../device/overlap.h"

namespace reformer {

// Tiles first, first + step, ... below `tiles`: fill(place_of(tile), turn) starts the copies of one while
// compute(place_of(tile), turn) is at work on the one before, and prepare() while the first is under way. turn is 0 or
// 1, the half of the shared memory.
template <class PlaceOf, class Fill, class Prepare, class Compute>
DEVICE void pipeline_tiles(int first, int tiles, int step, const PlaceOf& place_of, const Fill& fill,
                           const Prepare& prepare, const Compute& compute) {
  int tile = first, turn = 0;
  wait_for_earlier();
  fill(place_of(tile), turn);
  async_commit();
  prepare();
  for (; tile < tiles; tile += step, turn ^= 1) {
    if (tile + step < tiles) fill(place_of(tile + step), turn ^ 1);
    async_commit();
    async_wait<1>();
    barrier();
    compute(place_of(tile), turn);
    barrier();
  }
}

}  // namespace reformer
