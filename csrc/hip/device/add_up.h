// Adding up partial sums, which lie far apart in memory.
#pragma once

#include "types.h"

namespace reformer {

// Adds to `sums` the kCount numbers at from, from + pitch and so on: of the parts first, first + step and so on before
// `end`, in this order. Several loads are under way together; one by one each would wait for memory.
template <int kCount>
DEVICE void add_up(const float* from, long long pitch, int first, int step, int end, float (&sums)[kCount]) {
  constexpr int kTogether = 8;
  for (int part = first; part < end; part += step * kTogether) {
    float some[kTogether][kCount];
    UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int next = part + i * step;  // beyond the end the first is read again: a condition would wait, too
      const float* const at = from + (next < end ? next : part) * pitch;
      widen<fp32, kCount>(load<fp32, kCount>(at), some[i]);
    }
    UNROLL
    for (int i = 0; i < kTogether; ++i) {
      if (part + i * step >= end) break;
      UNROLL
      for (int e = 0; e < kCount; ++e) sums[e] += some[i][e];
    }
  }
}

}  // namespace reformer
