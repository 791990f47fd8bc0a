// Adding up partial sums, which lie far apart in memory.
#pragma once

#include "types.h"

namespace reformer {

// Adds to `sums` the kCount numbers at from, from + pitch and so on: of the parts first, first + step and so on before
// `end`, in this order. Several loads are under way together; one by one each would wait for memory. Nothing here is
// under a condition: the compiler would move the loads there, and have each wait for the one before.
template <int kCount>
DEVICE void add_up(const float* from, long long pitch, int first, int step, int end, float (&sums)[kCount]) {
  constexpr int kTogether = 8;
  for (int part = first; part < end; part += step * kTogether) {
    float some[kTogether][kCount];
    UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int next = part + i * step;  // beyond the end the first is read again
      const float* const at = from + (next < end ? next : part) * pitch;
      widen<fp32, kCount>(load<fp32, kCount>(at), some[i]);
    }
    UNROLL
    for (int i = 0; i < kTogether; ++i) {
      UNROLL
      for (int e = 0; e < kCount; ++e) sums[e] += part + i * step < end ? some[i][e] : 0.0f;
    }
  }
}

}  // namespace reformer
