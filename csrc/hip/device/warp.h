// Exchange between the threads of a warp. All threads of the warp must call each of these functions.
#pragma once

#include "platform.h"

namespace reformer {

DEVICE int lane_id() { return thread_id() % kWarp; }

// The warp's number in its block.
DEVICE int warp_id() {
#if defined(REFORMER_AMD)
  return __builtin_amdgcn_readfirstlane(thread_id() / kWarp);  // tells the compiler that it is uniform
#else
  return thread_id() / kWarp;
#endif
}

// One bit for each lane of a warp.
#if defined(REFORMER_NVIDIA)
using Ballot = unsigned;
#else
using Ballot = unsigned long long;
#endif

// The emulator has its own shuffles, which know their callers.
#if !defined(REFORMER_EMULATOR)
// The value of that lane.
DEVICE unsigned shuffle_from(unsigned value, int lane) {
#if defined(REFORMER_AMD)
  return unsigned(__builtin_amdgcn_ds_bpermute(lane * 4, int(value)));
#else
  return __shfl_sync(0xffffffffu, value, lane);
#endif
}
DEVICE float shuffle_from(float value, int lane) { return bits_to_float(shuffle_from(float_to_bits(value), lane)); }

// The value of lane_id() ^ mask; T is float or unsigned.
template <class T>
DEVICE T shuffle_xor(T value, int mask) {
#if defined(REFORMER_AMD)
  return shuffle_from(value, lane_id() ^ mask);
#else
  return __shfl_xor_sync(0xffffffffu, value, mask);
#endif
}

// The lanes in which `mine` is true.
DEVICE Ballot ballot(bool mine) {
#if defined(REFORMER_NVIDIA)
  return __ballot_sync(0xffffffffu, mine);
#elif defined(__GFX9__)
  return __builtin_amdgcn_ballot_w64(mine);
#else
  return __builtin_amdgcn_ballot_w32(mine);
#endif
}

// Waits for the warp's threads and makes their earlier writes visible to each other.
DEVICE void warp_barrier() {
#if defined(REFORMER_AMD)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
  __syncwarp();
#endif
}

// The value of lane_id() + distance, or the lane's own value past the end of the warp.
template <class T>
DEVICE T shuffle_down(T value, int distance) {
#if defined(REFORMER_AMD)
  const int lane = lane_id();
  return shuffle_from(value, lane + distance < kWarp ? lane + distance : lane);
#else
  return __shfl_down_sync(0xffffffffu, value, distance);
#endif
}
#endif

// The number of bits of a ballot, and of those in lower lanes.
DEVICE int bits_of(Ballot votes) {
#if defined(REFORMER_NVIDIA)
  return __popc(votes);
#else
  return __builtin_popcountll(votes);
#endif
}
DEVICE int bits_below(Ballot votes, int lane) { return bits_of(votes & ((Ballot(1) << lane) - 1)); }
// The lowest lane of a nonempty ballot.
DEVICE int first_of(Ballot votes) {
#if defined(REFORMER_NVIDIA)
  return __ffs(int(votes)) - 1;
#else
  return __builtin_ctzll(votes);
#endif
}

// The sum over the warp, bitwise equal in every lane: a butterfly reduction over halves, quarters, and so on.
DEVICE float warp_sum(float value) {
  UNROLL
  for (int mask = kWarp / 2; mask; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

}  // namespace reformer
