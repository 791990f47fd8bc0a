// Philox-4x32-10: random numbers that are a function of their place. Source: Salmon, Moraes, Dror and Shaw, Parallel
// random numbers: as easy as 1, 2, 3, SC 2011.
#pragma once

#include <cstdint>

namespace reformer {

// The four numbers of places 4 * group to 4 * group + 3.
inline void philox(uint64_t key, uint64_t group, uint32_t (&numbers)[4]) {
  uint32_t c[4] = {uint32_t(group), uint32_t(group >> 32), 0, 0}, k[2] = {uint32_t(key), uint32_t(key >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k[1],
                              uint32_t(a)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  for (int i = 0; i < 4; ++i) numbers[i] = c[i];
}

// In [0, 1), with 24 bits.
inline float uniform(uint32_t number) { return float(number >> 8) * 0x1p-24f; }

}  // namespace reformer
