// Packing of panels, part of gemm.h. For each step of the sum a panel holds `width` rows or columns of a matrix side by
// side, as the register tile reads them. Missing rows or columns may hold any values.

namespace reformer::REFORMER_ISA {

// Memory of a panel: element (i, d) is at data[i * row + d * step].
template <class S>
struct Panel {
  const S* data;
  int64_t row, step;
};

// Memory of a tile of the result: element (m, n) is at data[m * row + n]. data is null if the tile can't be written in
// place.
template <class S>
struct Rows {
  S* data;
  int64_t row;
};

// Widens `count` consecutive elements to S. Writes whole vectors, i.e. up to kLanes<S> - 1 more elements, for which
// panels have room after their last step.
template <class S, class T>
REFORMER_INLINE void widen(S* to, const T* from, int count) {
  constexpr int L = kLanes<S>;
  int i = 0;
  for (; i + L <= count; i += L) store<S>(to + i, load<S>(from + i));
  if (i < count) store<S>(to + i, load_part<S>(from + i, count - i));
}

// Like widen, without writing more elements.
template <class S, class T>
REFORMER_INLINE void widen_exactly(S* to, const T* from, int count) {
  constexpr int L = kLanes<S>;
  int i = 0;
  for (; i + L <= count; i += L) store<S>(to + i, load<S>(from + i));
  if (i < count) store_part<S>(to + i, load_part<S>(from + i, count - i), count - i);
}

// Narrows `count` elements.
template <class S, class T>
REFORMER_INLINE void narrow(T* to, const S* from, int count) {
  constexpr int L = kLanes<S>;
  int i = 0;
  for (; i + L <= count; i += L) store<S>(to + i, load<S>(from + i));
  if (i < count) store_part<S>(to + i, load_part<S>(from + i, count - i), count - i);
}

template <class V, int... I>
REFORMER_INLINE V interleave_low(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I % 2 ? int(sizeof...(I)) : 0) + I / 2 ...);
}
template <class V, int... I>
REFORMER_INLINE V interleave_high(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I % 2 ? int(sizeof...(I)) : 0) + (I + int(sizeof...(I))) / 2 ...);
}

// Reads ROWS vectors of the steps d .. d + L-1 and transposes them to [step][row]. Each round of interleaving rotates
// the bits of an element's position by one; log2(ROWS) rounds move the row to the lowest bits.
template <int ROWS, class S>
REFORMER_INLINE void transpose(Vec<S> (&v)[ROWS]) {
  using Lanes = std::make_integer_sequence<int, kLanes<S>>;
  for (int round = 1; round < ROWS; round *= 2) {
    Vec<S> next[ROWS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS / 2; ++i) {
      next[2 * i] = interleave_low(v[i], v[i + ROWS / 2], Lanes{});
      next[2 * i + 1] = interleave_high(v[i], v[i + ROWS / 2], Lanes{});
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) v[i] = next[i];
  }
}

// to[d * WIDTH + i] = row[i][d] for i < ROWS and d < depth; zero where there is no row.
template <int WIDTH, int ROWS, class S, class T>
void transpose_rows(S* to, const T* const (&row)[ROWS], int64_t depth) {
  constexpr int L = kLanes<S>;
  int64_t d = 0;
  for (; d + L <= depth; d += L) {
    Vec<S> v[ROWS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) v[i] = row[i] ? load<S>(row[i] + d) : Vec<S>{};
    transpose<ROWS, S>(v);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) store<S>(to + (d + i * L / ROWS) * WIDTH, v[i]);
  }
  for (; d < depth; ++d)
    for (int i = 0; i < ROWS; ++i) to[d * WIDTH + i] = row[i] ? Element<T>::load(row[i][d]) : S(0);
}

// to[d * WIDTH + i] = from(i)[d] for i < count and d < depth; the others are zero.
// WIDTH is a multiple of the vector, or a power of two below it.
template <int WIDTH, class S, class RowOf>
void transpose_panel(S* to, int count, int64_t depth, const RowOf& from) {
  constexpr int L = kLanes<S>, ROWS = WIDTH < L ? WIDTH : L;
  using T = std::remove_cv_t<std::remove_pointer_t<decltype(from(0))>>;
  for (int first = 0; first < WIDTH; first += ROWS) {
    const T* row[ROWS];
    for (int i = 0; i < ROWS; ++i) row[i] = first + i < count ? from(first + i) : nullptr;
    transpose_rows<WIDTH>(to + first, row, depth);
  }
}

}  // namespace reformer::REFORMER_ISA
