// Reductions and scans along a line. For an ISA body, after operations.h; no include guard. Memory before and after a
// line is not read.

namespace reformer::REFORMER_ISA {

// Functors, not lambdas: vectors can't cross calls, and these are always inlined.
struct Plus {
  template <class T>
  REFORMER_INLINE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Times {
  template <class T>
  REFORMER_INLINE T operator()(T a, T b) const {
    return a * b;
  }
};
// NaN if one is.
struct Larger {
  template <class T>
  REFORMER_INLINE T operator()(T a, T b) const {
    return ((a > b) | (a != a)) ? a : b;
  }
};

// function(...) of all lanes of a vector, half by half.
template <class T, int kCount>
struct LanesOf {
  typedef T type __attribute__((vector_size(kCount * sizeof(T))));
};
template <class T, int kCount, class Function>
REFORMER_INLINE T folded(typename LanesOf<T, kCount>::type v, Function function) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    typename LanesOf<T, kCount / 2>::type halves[2];
    std::memcpy(halves, &v, sizeof halves);
    return folded<T, kCount / 2>(function(halves[0], halves[1]), function);
  }
}

// The first `count` lanes of v, then those of `rest`.
template <class S>
REFORMER_INLINE Vec<S> first_lanes(Vec<S> v, int64_t count, Vec<S> rest) {
  using Index = std::conditional_t<sizeof(S) == 4, int32_t, int64_t>;
  Vec<Index> lane;
  for (int i = 0; i < kLanes<S>; ++i) lane[i] = Index(i);
  return lane < broadcast(Index(count)) ? v : rest;
}

// The sum of function(a, b) along a line, and of its squares if kSquares.
template <class S, bool kSquares>
class LineSum {
 public:
  template <class Function>
  REFORMER_INLINE LineSum(Operand<S> a, Operand<S> b, int64_t width, Function function) {
    for (; width > kAtOnce; width -= kAtOnce) add(a, b, kAtOnce, function);
    add(a, b, width, function);
  }
  REFORMER_INLINE double sum() const { return folded<double, kLanes<S>>(sum_, Plus()); }
  REFORMER_INLINE double squares() const { return folded<double, kLanes<S>>(squares_, Plus()); }

 private:
  using Wide = typename LanesOf<double, kLanes<S>>::type;
  static constexpr int kSums = 8;
  static constexpr int64_t kAtOnce = 512;  // elements; so few that fp32 rounds little

  template <class Function>
  REFORMER_INLINE void add(Operand<S>& a, Operand<S>& b, int64_t count, Function function) {
    Vec<S> sums[kSums], squares[kSums];
#pragma GCC unroll 8
    for (int j = 0; j < kSums; ++j) sums[j] = squares[j] = Vec<S>{};
    const auto add_to = [&](int j, Vec<S> value) {
      sums[j] += value;
      if constexpr (kSquares) squares[j] = fma<S>(value, value, squares[j]);
    };
    const auto next = [&](Operand<S>& operand) { return operand.at ? operand.next() : Vec<S>{}; };
    const auto part = [&](const Operand<S>& operand) {
      return operand.at ? load_part<S>(operand.at, int(count)) : Vec<S>{};
    };
    for (; count >= kSums * kLanes<S>; count -= kSums * kLanes<S>)
#pragma GCC unroll 8
      for (int j = 0; j < kSums; ++j) add_to(j, function(next(a), next(b)));
#pragma GCC unroll 8
    for (int j = 0; j < kSums; ++j)
      if (count >= kLanes<S>) {
        add_to(j, function(next(a), next(b)));
        count -= kLanes<S>;
      }
    if (count > 0) add_to(kSums - 1, first_lanes<S>(function(part(a), part(b)), count, Vec<S>{}));
    widen(sums, sum_);
    if constexpr (kSquares) widen(squares, squares_);
  }
  static REFORMER_INLINE void widen(const Vec<S> (&sums)[kSums], Wide& to) {
#pragma GCC unroll 2
    for (int j = 0; j < kSums; j += 4)  // few enough that fp32 rounds as little as above
      to += __builtin_convertvector((sums[j] + sums[j + 1]) + (sums[j + 2] + sums[j + 3]), Wide);
  }

  Wide sum_ = {}, squares_ = {};
};

// NaN if any element is.
template <class S>
S largest(const S* from, int64_t width) {
  constexpr int kMaxima = 4;
  const Larger larger_of;
  const Vec<S> least = broadcast(-std::numeric_limits<S>::infinity());
  if (width < kLanes<S>)
    return folded<S, kLanes<S>>(first_lanes<S>(load_part<S>(from, int(width)), width, least), larger_of);
  Vec<S> maxima[kMaxima] = {load<S>(from + width - kLanes<S>), least, least, least};
  int64_t i = 0;
  for (; i + kMaxima * kLanes<S> <= width; i += kMaxima * kLanes<S>)
#pragma GCC unroll 4
    for (int j = 0; j < kMaxima; ++j) maxima[j] = larger_of(load<S>(from + i + j * kLanes<S>), maxima[j]);
#pragma GCC unroll 4
  for (int j = 0; j < kMaxima; ++j)
    if (i + (j + 1) * kLanes<S> <= width) maxima[j] = larger_of(load<S>(from + i + j * kLanes<S>), maxima[j]);
  return folded<S, kLanes<S>>(larger_of(larger_of(maxima[0], maxima[1]), larger_of(maxima[2], maxima[3])), larger_of);
}

// In double, whose range products of floats rarely leave on the way.
template <class S>
double product(const S* from, int64_t width) {
  using Wide = typename LanesOf<double, kLanes<S>>::type;
  constexpr int kProducts = 4;
  Wide products[kProducts];
#pragma GCC unroll 4
  for (int j = 0; j < kProducts; ++j) products[j] = Wide{} + 1.0;
  for (; width >= kProducts * kLanes<S>; width -= kProducts * kLanes<S>)
#pragma GCC unroll 4
    for (int j = 0; j < kProducts; ++j, from += kLanes<S>) products[j] *= __builtin_convertvector(load<S>(from), Wide);
#pragma GCC unroll 4
  for (int j = 0; j < kProducts; ++j, width -= kLanes<S>, from += kLanes<S>)
    if (width > 0)
      products[j] *= __builtin_convertvector(
          first_lanes<S>(load_part<S>(from, int(std::min<int64_t>(width, kLanes<S>))), width, broadcast(S(1))), Wide);
  return folded<double, kLanes<S>>((products[0] * products[1]) * (products[2] * products[3]), Times());
}

// A running sum or product of a line, which `to` may overwrite; in double, as PyTorch's are.
template <class S>
void scan(ProgramOp op, const S* from, S* to, int64_t width) {
  const auto run = [&](double known, auto joined) {
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = scans_from_end(op) ? width - 1 - i : i;
      known = joined(known, double(from[at]));
      to[at] = S(known);
    }
  };
  if (scans_products(op))
    run(1, Times());
  else
    run(0, Plus());
}

// Moments from the sums of differences from an origin and of their squares.
inline programs::Partial moments(double count, double origin, double sum, double squares) {
  // Clamp rounding errors at 0; NaN stays NaN.
  const double rest = squares - sum * sum / count;
  return {count, origin + sum / count, rest < 0 ? 0 : rest};
}

// The reduction of a line.
template <class S>
programs::Partial along(Reduction kind, const S* from, int64_t width) {
  if (kind == Reduction::max) return {1, double(largest(from, width)), 0};
  if (kind == Reduction::prod) return {0, product(from, width), 0};
  if (kind == Reduction::sum) {
    const LineSum<S, false> line({from, kLanes<S>}, {}, width, [&](Vec<S> x, Vec<S>) { return x; });
    return {0, line.sum(), 0};
  }
  // Moments are computed from differences from the first element.
  const Vec<S> origin = broadcast(from[0]);
  const LineSum<S, true> line({from, kLanes<S>}, {}, width, [&](Vec<S> x, Vec<S>) { return x - origin; });
  return moments(double(width), double(from[0]), line.sum(), line.squares());
}

}  // namespace reformer::REFORMER_ISA
