// Philox-4x32-7: random numbers that are a function of their position. Source: Salmon, Moraes, Dror and Shaw, Parallel
// random numbers: as easy as 1, 2, 3, SC 2011; it passes their tests with seven rounds or more. Part of the body of
// run.cpp: computes many groups at once, one in each lane.

namespace reformer::REFORMER_ISA {

typedef uint64_t Words __attribute__((vector_size(REFORMER_VECTOR_BYTES)));  // only the low halves are used

constexpr int kRounds = 7;
constexpr int kVectors = 4;  // vectors at once, to hide the latency of a product
constexpr int kGroups = kVectors * int(sizeof(Words) / 8);

REFORMER_INLINE Words product(Words a, Words b) {
#if defined(REFORMER_ISA_AVX512)
  return (Words)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(REFORMER_ISA_AVX2)
  return (Words)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
#endif
}

// The four numbers in [0, 1) of positions 4 * group to 4 * group + 3, for each of these groups. The upper 23 bits of
// each random word are the fraction of a number in [1, 2).
REFORMER_INLINE void philox(uint64_t key, const uint64_t (&groups)[kGroups], float (&numbers)[4 * kGroups]) {
  uint64_t pairs[2][kGroups];
  for (int v = 0; v < kVectors; ++v) {
    Words c[4] = {};
    memcpy(&c[0], groups + v * (kGroups / kVectors), sizeof(Words));
    c[1] = c[0] >> 32;
    uint32_t k[2] = {uint32_t(key), uint32_t(key >> 32)};
    for (int round = 0; round < kRounds; ++round) {
      const Words a = product(c[0], Words{} + 0xD2511F53), b = product(c[2], Words{} + 0xCD9E8D57);
      c[0] = (b >> 32) ^ c[1] ^ k[0];
      c[1] = b;
      c[2] = (a >> 32) ^ c[3] ^ k[1];
      c[3] = a;
      k[0] += 0x9E3779B9;
      k[1] += 0xBB67AE85;
    }
    for (int i = 0; i < 2; ++i) {
      const Words pair = (c[2 * i] & 0xFFFFFFFF) | c[2 * i + 1] << 32;
      memcpy(pairs[i] + v * (kGroups / kVectors), &pair, sizeof(Words));
    }
  }
  uint64_t in_order[2 * kGroups];
  for (int i = 0; i < kGroups; ++i) {
    in_order[2 * i] = pairs[0][i];
    in_order[2 * i + 1] = pairs[1][i];
  }
  uint32_t bits[4 * kGroups];
  memcpy(bits, in_order, sizeof(bits));
  for (int i = 0; i < 4 * kGroups; ++i) bits[i] = 0x3f800000 | bits[i] >> 9;
  memcpy(numbers, bits, sizeof(bits));
  for (int i = 0; i < 4 * kGroups; ++i) numbers[i] -= 1.0f;
}

// Random numbers of consecutive positions.
template <class S>
void draw(S* to, uint64_t key, int64_t first, int64_t count) {
  uint64_t groups[kGroups];
  float numbers[4 * kGroups];
  const int64_t end = first + count;
  for (int64_t begin = first / 4 * 4; begin < end; begin += 4 * kGroups) {
    for (int i = 0; i < kGroups; ++i) groups[i] = uint64_t(begin / 4 + i);
    philox(key, groups, numbers);
    const int64_t from = std::max(first, begin), past = std::min(end, begin + 4 * kGroups);
    std::copy(numbers + (from - begin), numbers + (past - begin), to + (from - first));
  }
}

// Random numbers of positions that are a stride apart.
template <class S>
void draw(S* to, uint64_t key, int64_t first, int64_t count, int64_t stride) {
  uint64_t groups[kGroups];
  float numbers[4 * kGroups];
  for (int64_t begin = 0; begin < count; begin += kGroups) {
    for (int i = 0; i < kGroups; ++i) groups[i] = uint64_t(first + (begin + i) * stride) / 4;
    philox(key, groups, numbers);
    for (int64_t i = begin; i < std::min(count, begin + kGroups); ++i)
      to[i] = S(numbers[4 * (i - begin) + (first + i * stride) % 4]);
  }
}

}  // namespace reformer::REFORMER_ISA
