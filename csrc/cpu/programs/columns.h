// Reductions across lines. For an ISA body, after rows.h; no include guard.

namespace reformer::REFORMER_ISA {

using programs::Partial;

// The running reduction of each column over all blocks of a unit. Sums of a few lines are accumulated in S, and those
// sums in fp64. Narrow lines are taken several at a time, as a span, so that vectors are full.
template <class S>
class Columns {
 public:
  // Memory for blocks of `block` elements.
  static int64_t bytes(int64_t block) { return block * int64_t(2 * sizeof(double) + 3 * sizeof(S)); }
  Columns(void* memory, int64_t block)
      : values_(static_cast<double*>(memory)),
        squares_(values_ + block),
        origins_(reinterpret_cast<S*>(squares_ + block)),
        few_values_(origins_ + block),
        few_squares_(few_values_ + block) {}

  // lines: the most of a block.
  void begin(Reduction kind, int64_t lines, int64_t width) {
    width_ = width;
    span_ = std::min(lines, (kLeastSpan + width - 1) / width) * width;
    is_first_ = true;
    std::fill(values_, values_ + span_, Partial::none(kind).value);
    std::fill(squares_, squares_ + span_, 0);
    clear(kind);
  }

  // Adds a block of lines.
  void add(Reduction kind, const S* from, int64_t lines) {
    if (std::exchange(is_first_, false) && kind == Reduction::moments)
      for (int64_t i = 0; i < span_; i += width_) std::copy(from, from + width_, origins_ + i);
    for (int64_t count = lines * width_; count > 0;) {
      const int64_t spans = std::min((count + span_ - 1) / span_, kSpansAtATime - spans_);
      const int64_t part = std::min(count, spans * span_), whole = part / span_;
      add_spans(kind, from, whole, span_);
      if (part > whole * span_) add_spans(kind, from + whole * span_, 1, part - whole * span_);
      from += part;
      count -= part;
      if ((spans_ += spans) == kSpansAtATime) flush(kind);
    }
  }

  // Adds the results of a unit's columns, each over `elements` elements, to states from `at` on.
  void finish(int64_t elements, programs::PartialArray& to, int64_t at) {
    const Reduction kind = to.kind;
    flush(kind);
    for (int64_t first = width_; first < span_; first += width_)
      for (int64_t i = 0; i < width_; ++i) {
        values_[i] = joined(kind, values_[i], values_[first + i]);
        squares_[i] += squares_[first + i];
      }
    if (kind == Reduction::sum)
      for (int64_t i = 0; i < width_; ++i) to.values[size_t(at + i)] += values_[i];
    else
      for (int64_t i = 0; i < width_; ++i)
        to.add(at + i, kind == Reduction::moments
                           ? moments(double(elements), double(origins_[i]), values_[i], squares_[i])
                           : Partial{0, values_[i], 0});
  }

 private:
  static constexpr int64_t kLeastSpan = 64;  // elements
  static constexpr int64_t kSpansAtATime = std::is_same_v<S, float> ? 8 : 1 << 20;

  // Sums of moments are added.
  static double joined(Reduction kind, double a, double b) {
    return kind == Reduction::max ? Larger()(a, b) : kind == Reduction::prod ? a * b : a + b;
  }
  void clear(Reduction kind) {
    spans_ = 0;
    std::fill(few_values_, few_values_ + span_, S(Partial::none(kind).value));
    std::fill(few_squares_, few_squares_ + span_, S(0));
  }
  void flush(Reduction kind) {
    for (int64_t i = 0; i < span_; ++i) values_[i] = joined(kind, values_[i], double(few_values_[i]));
    if (kind == Reduction::moments)
      for (int64_t i = 0; i < span_; ++i) squares_[i] += double(few_squares_[i]);
    clear(kind);
  }

  // Adds the first `count` elements of each of some spans.
  void add_spans(Reduction kind, const S* from, int64_t spans, int64_t count) {
    switch (kind) {
      case Reduction::sum: return add_spans<Reduction::sum>(from, spans, count);
      case Reduction::moments: return add_spans<Reduction::moments>(from, spans, count);
      case Reduction::max: return add_spans<Reduction::max>(from, spans, count);
      case Reduction::prod: return add_spans<Reduction::prod>(from, spans, count);
      case Reduction::none: return;
    }
  }
  template <Reduction kKind>
  void add_spans(const S* from, int64_t spans, int64_t count) {
    int64_t i = 0;
    for (; i + 4 * kLanes<S> <= count; i += 4 * kLanes<S>) add_vectors<kKind, 4>(from, spans, i);
    for (; i + kLanes<S> <= count; i += kLanes<S>) add_vectors<kKind, 1>(from, spans, i);
    for (; i < count; ++i)
      for (int64_t j = 0; j < spans; ++j)
        add_one<kKind>(from[i + j * span_], origins_[i], few_values_[i], few_squares_[i]);
  }
  // Adds adjacent vectors of each span, which begin at its element i.
  template <Reduction kKind, int kVectors>
  REFORMER_INLINE void add_vectors(const S* from, int64_t spans, int64_t i) {
    const auto each = [](auto visit) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) visit(v);
    };
    Vec<S> values[kVectors], squares[kVectors], origins[kVectors];
    each([&](int v) {
      values[v] = load<S>(few_values_ + i + v * kLanes<S>);
      squares[v] = load<S>(few_squares_ + i + v * kLanes<S>);
      origins[v] = load<S>(origins_ + i + v * kLanes<S>);
    });
    from += i;
    for (int64_t j = 0; j < spans; ++j, from += span_)
      each([&](int v) { add_one<kKind>(load<S>(from + v * kLanes<S>), origins[v], values[v], squares[v]); });
    each([&](int v) {
      store<S>(few_values_ + i + v * kLanes<S>, values[v]);
      if (kKind == Reduction::moments) store<S>(few_squares_ + i + v * kLanes<S>, squares[v]);
    });
  }
  // T: S or a vector.
  template <Reduction kKind, class T>
  static REFORMER_INLINE void add_one(T x, T origin, T& value, T& square) {
    if constexpr (kKind == Reduction::sum) value += x;
    if constexpr (kKind == Reduction::max) value = Larger()(x, value);
    if constexpr (kKind == Reduction::prod) value *= x;
    if constexpr (kKind == Reduction::moments) {
      const T difference = x - origin;
      value += difference;
      square = difference * difference + square;
    }
  }

  // Sums, maxima or products. For moments, sums of differences from the first line, which stay exact if the mean is
  // large.
  double *const values_, *const squares_;
  S *const origins_, *const few_values_, *const few_squares_;
  int64_t width_ = 0, span_ = 0, spans_ = 0;  // of a line and a span; number of spans since the last flush
  bool is_first_ = true;
};

}  // namespace reformer::REFORMER_ISA
