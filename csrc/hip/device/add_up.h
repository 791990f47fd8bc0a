// Adding up partial sums, which lie far apart in memory.
#pragma once

#include "types.h"

namespace reformer {

// Adds kCount numbers of each part to `sums`. Part i begins at from + i * pitch; the parts are first, first + step and
// so on before `end`, in this order. The loop is unrolled, so that several loads are in flight at once. No load is
// under a condition: the compiler would move the loads there, and each would wait for the one before.
template <int kCount>
DEVICE void add_up(const float* from, long long pitch, int first, int step, int end, float (&sums)[kCount]) {
  constexpr int kUnroll = 8;
  for (int part = first; part < end; part += step * kUnroll) {
    float some[kUnroll][kCount];
    UNROLL
    for (int i = 0; i < kUnroll; ++i) {
      const int next = part + i * step;  // beyond the end the first is read again
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
