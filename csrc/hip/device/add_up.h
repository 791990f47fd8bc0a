// Adds up partial sums, which are far apart in memory.
#pragma once

#include "types.h"

namespace reformer {

// Adds kCount numbers of each part to `sums`. Part i begins at from + i * pitch; the parts are first, first + step ...
// below `end`, added in this order. The loop is unrolled, so that several loads are in flight at once. Loads are
// unconditional: the compiler would move conditional loads into the branches, and each would wait for the previous one.
template <int kCount>
DEVICE void add_up(const float* from, long long pitch, int first, int step, int end, float (&sums)[kCount]) {
  constexpr int kUnroll = 8;
  for (int part = first; part < end; part += step * kUnroll) {
    float some[kUnroll][kCount];
    UNROLL
    for (int i = 0; i < kUnroll; ++i) {
      const int next = part + i * step;  // beyond the end, read the first part again
      const float* const at = from + (next < end ? next : part) * pitch;
      widen<fp32, kCount>(load<fp32, kCount>(at), some[i]);
    }
    UNROLL
    for (int i = 0; i < kUnroll; ++i) {
      UNROLL
      for (int e = 0; e < kCount; ++e) sums[e] += part + i * step < end ? some[i][e] : 0.0f;
    }
  }
}

}  // namespace reformer
