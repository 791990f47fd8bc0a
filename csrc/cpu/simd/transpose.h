// Transposes a square of registers. For an ISA body, after vec.h; no include guard.
#include <utility>

namespace reformer::REFORMER_ISA {

// Interleaves a and b: the even lanes are the first (kHigh 0) or second (1) half of a's lanes in order, the odd lanes
// those of b.
template <class T, int kHigh, int... kLane>
REFORMER_INLINE Vec<T> interleave(Vec<T> a, Vec<T> b, std::integer_sequence<int, kLane...>) {
  constexpr int lanes = kLanes<T>;
  return __builtin_shufflevector(a, b, (kHigh * lanes / 2 + kLane / 2 + kLane % 2 * lanes)...);
}

// Each of the log2(lanes) rounds is a perfect shuffle of the square viewed as one row.
template <class T>
REFORMER_INLINE void transpose(Vec<T> (&square)[kLanes<T>]) {
  constexpr int lanes = kLanes<T>;
  constexpr auto all = std::make_integer_sequence<int, lanes>();
#pragma GCC unroll 4
  for (int round = 1; round < lanes; round *= 2) {
    Vec<T> next[lanes];
#pragma GCC unroll 8
    for (int i = 0; i < lanes / 2; ++i) {
      next[2 * i] = interleave<T, 0>(square[i], square[i + lanes / 2], all);
      next[2 * i + 1] = interleave<T, 1>(square[i], square[i + lanes / 2], all);
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) square[i] = next[i];
  }
}

}  // namespace reformer::REFORMER_ISA
