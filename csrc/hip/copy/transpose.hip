// Copies to another memory format in which adjacent elements are not adjacent. Tiles go through shared memory, so that
// both sides are accessed in whole cache lines.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "transpose_args.h"

namespace reformer {
namespace {

template <int kBits>
struct Element {
  using Type = unsigned;
};
template <>
struct Element<16> {
  using Type = unsigned short;
};

// Element j of a word of several elements.
template <class T, int kBytes>
DEVICE T element(const Words<kBytes>& of, int j) {
  constexpr int kOfWord = sizeof(T) == 4 || kBytes == 2 ? 1 : 2;
  return static_cast<T>(word(of, j / kOfWord) >> j % kOfWord * 16);
}

template <int kBits, int kCount>
DEVICE void transpose(const TransposeArgs& p) {
  using T = typename Element<kBits>::Type;
  using Some = Words<int(sizeof(T)) * kCount>;
  constexpr int kTile = kTransposeTile, kAlong = kTile / kCount, kStep = kTransposeThreads / kAlong;
  constexpr int kOfWord = kBits == 16 && kCount > 1 ? 2 : 1;
  SHARED T tile[kTile][kTile + 4 / int(sizeof(T))];  // one more word, so that columns are in different banks
  int tile_column = block_x();
  const int line0 = divide_with_rest(tile_column, p.by_along) * kTile, column0 = tile_column * kTile;
  int matrix = block_y();
  long long from = 0, to = 0;
  UNROLL
  for (int i = 0; i < 3; ++i) {
    int digit = matrix;
    if (i < 2) matrix = divide_with_rest(digit, p.by_digit[i]);
    from += digit * p.from_stride[i];
    to += digit * p.to_stride[i];
  }
  const int along = thread_id() % kAlong * kCount, across = thread_id() / kAlong;
  grid_dependency_wait();
  UNROLL
  for (int i = 0; i < kTile; i += kStep) {
    const int line = line0 + across + i, column = column0 + along;
    if (line >= p.lines || column >= p.columns) continue;
    const Some some =
        *reinterpret_cast<const Some*>(static_cast<const T*>(p.from) + from + line * p.from_pitch + column);
    UNROLL
    for (int j = 0; j < kCount; ++j) tile[across + i][along + j] = element<T>(some, j);
  }
  barrier();
  UNROLL
  for (int i = 0; i < kTile; i += kStep) {
    const int column = column0 + across + i, line = line0 + along;
    if (line >= p.lines || column >= p.columns) continue;
    Some some;
    UNROLL
    for (int j = 0; j < kCount; j += kOfWord) {
      unsigned word = tile[along + j][across + i];
      if constexpr (kOfWord == 2) word |= static_cast<unsigned>(tile[along + j + 1][across + i]) << 16;
      set_word(some, j / kOfWord, word);
    }
    *reinterpret_cast<Some*>(static_cast<T*>(p.to) + to + column * p.to_pitch + line) = some;
  }
}

}  // namespace
}  // namespace reformer

#define X(bits, count)                                                                           \
  KERNEL(reformer::kTransposeThreads) transpose_##bits##_##count(reformer::TransposeArgs args) { \
    reformer::grid_dependency_launch();                                                          \
    reformer::transpose<bits, count>(args);                                                      \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "transpose.inc"
#endif
