// Kernels for tests of warp.h and async_copy.h.
#include "async_copy.h"
#include "warp.h"

namespace reformer {

constexpr int kPrimitiveThreads = 128;

// Each thread gets numbers[thread] and results[thread][8].
struct WarpArgs {
  const float* numbers;
  float* results;
  int mask, distance;
};

KERNEL(kPrimitiveThreads) warp_primitives(WarpArgs args) {
  const float number = args.numbers[thread_id()];
  float* results = args.results + thread_id() * 8;
  results[0] = shuffle_xor(number, args.mask);
  results[1] = bits_to_float(shuffle_xor(float_to_bits(number), args.mask));
  results[2] = shuffle_down(number, args.distance);
  results[3] = shuffle_from(number, 5);
  results[4] = warp_sum(number);
  results[5] = static_cast<float>(lane_id());
  results[6] = static_cast<float>(warp_id());
  results[7] = static_cast<float>(kWarp);
}

// to[i] = from[i] for i < inside, else 0, of kPrimitiveThreads pieces of 16, 8 and 4 bytes each, in three groups.
struct CopyArgs {
  const unsigned char* from;
  unsigned char* to;
  int inside;
};

template <int kBytes>
DEVICE void write_piece(unsigned char* to, const unsigned char* shared) {
  const int at = thread_id() * kBytes;
  *reinterpret_cast<Words<kBytes>*>(to + at) = *reinterpret_cast<const Words<kBytes>*>(shared + at);
}

KERNEL(kPrimitiveThreads) async_copies(CopyArgs args) {
  SHARED Words<16> wide[kPrimitiveThreads];
  SHARED Words<8> half[kPrimitiveThreads];
  SHARED Words<4> narrow_words[kPrimitiveThreads];
  const int i = thread_id();
  const bool inside = i < args.inside;
  async_copy<16>(wide + i, args.from + 16 * i, inside);
  async_commit();
  async_copy<8>(half + i, args.from + 8 * i, inside);
  async_commit();
  async_copy<4>(narrow_words + i, args.from + 4 * i, inside);
  async_commit();
  async_wait<2>();
  unsigned char* to = args.to;
  write_piece<16>(to, reinterpret_cast<const unsigned char*>(wide));
  async_wait<1>();
  write_piece<8>(to + 16 * kPrimitiveThreads, reinterpret_cast<const unsigned char*>(half));
  async_wait<0>();
  write_piece<4>(to + 24 * kPrimitiveThreads, reinterpret_cast<const unsigned char*>(narrow_words));
}

}  // namespace reformer
