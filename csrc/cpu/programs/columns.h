// Reductions across lines. For an ISA body, after operations.h; no include guard.

namespace reformer::REFORMER_ISA {

using programs::Partial;

// Moments from the sums of differences from an origin and of their squares.
inline Partial moments(double count, double origin, double sum, double squares) {
  // Clamp rounding errors at 0; NaN stays NaN.
  const double rest = squares - sum * sum / count;
  return {count, origin + sum / count, rest < 0 ? 0 : rest};
}

// The running reduction of each element position of a block over all blocks of a unit. Sums of a few blocks are
// accumulated in S, and those sums in fp64.
template <class S>
class Columns {
 public:
  // Memory for blocks of `block` elements.
  static int64_t bytes(int64_t block) { return block * int64_t(2 * sizeof(double) + 3 * sizeof(S)); }
  Columns(void* memory, int64_t block)
      : block_(block),
        values_(static_cast<double*>(memory)),
        squares_(values_ + block),
        origins_(reinterpret_cast<S*>(squares_ + block)),
        few_values_(origins_ + block),
        few_squares_(few_values_ + block) {}

  void begin(Reduction kind) {
    blocks_ = 0;
    std::fill(values_, values_ + block_, Partial::none(kind).value);
    std::fill(squares_, squares_ + block_, 0);
    clear();
  }

  // Adds a block of lines.
  void add(Reduction kind, const S* from, int64_t lines, int64_t width) {
    const int64_t count = lines * width, whole = count / kLanes<S> * kLanes<S>;
    if (kind == Reduction::max) {
      for (int64_t i = 0; i < count; ++i)
        if (from[i] != from[i] || double(from[i]) > values_[i]) values_[i] = double(from[i]);
    } else if (kind == Reduction::sum) {
      each(few_values_, whole, [&](int64_t i) { return load<S>(few_values_ + i) + load<S>(from + i); });
      for (int64_t i = whole; i < count; ++i) few_values_[i] += from[i];
    } else {
      if (blocks_ == 0)
        for (int64_t i = 0; i < block_; i += width) std::copy(from, from + std::min(width, block_ - i), origins_ + i);
      for (int64_t i = 0; i < whole; i += kLanes<S>) {
        const Vec<S> difference = load<S>(from + i) - load<S>(origins_ + i);
        store<S>(few_values_ + i, load<S>(few_values_ + i) + difference);
        store<S>(few_squares_ + i, fma<S>(difference, difference, load<S>(few_squares_ + i)));
      }
      for (int64_t i = whole; i < count; ++i) {
        const S difference = from[i] - origins_[i];
        few_values_[i] += difference;
        few_squares_[i] += difference * difference;
      }
    }
    if (++blocks_ % kBlocksAtATime == 0) flush(kind);
  }

  // Adds the results of a unit's columns, each over `elements` elements, to `to`.
  void finish(Reduction kind, int64_t width, int64_t elements, Partial* to) {
    flush(kind);
    for (int64_t first = width; first + width <= block_; first += width)
      for (int64_t i = 0; i < width; ++i) {
        values_[i] =
            kind == Reduction::max ? larger_of(values_[i], values_[first + i]) : values_[i] + values_[first + i];
        squares_[i] += squares_[first + i];
      }
    for (int64_t i = 0; i < width; ++i)
      to[i].add(kind, kind == Reduction::moments
                          ? moments(double(elements), double(origins_[i]), values_[i], squares_[i])
                          : Partial{0, values_[i], 0});
  }

 private:
  static constexpr int64_t kBlocksAtATime = std::is_same_v<S, float> ? 4 : 1;

  static double larger_of(double a, double b) { return a > b || a != a ? a : b; }
  void clear() {
    std::fill(few_values_, few_values_ + block_, S(0));
    std::fill(few_squares_, few_squares_ + block_, S(0));
  }
  void flush(Reduction kind) {
    if (kind == Reduction::max) return;
    for (int64_t i = 0; i < block_; ++i) values_[i] += double(few_values_[i]);
    if (kind == Reduction::moments)
      for (int64_t i = 0; i < block_; ++i) squares_[i] += double(few_squares_[i]);
    clear();
  }

  // Sums or maxima. For moments, sums of differences from the first line, which stay exact if the mean is large.
  const int64_t block_;
  double *const values_, *const squares_;
  S *const origins_, *const few_values_, *const few_squares_;
  int64_t blocks_ = 0;
};

}  // namespace reformer::REFORMER_ISA
