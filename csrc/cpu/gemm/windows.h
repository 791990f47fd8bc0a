// The windows of a general convolution as matrices (im2col), read panel by panel; part of gemm.h. Padding is zero.
namespace reformer::REFORMER_ISA {

// Along one axis, tap t of window i reads source[i * step + first + t * inc] if that index is in [0, size).
struct Axis {
  int64_t size, windows, step, first, taps, inc;

  int64_t at(int64_t window, int64_t tap) const { return window * step + first + tap * inc; }
  bool inside(int64_t position) const { return position >= 0 && position < size; }
};

// Windows i = (image, row, column) over a batch; tap j = (row tap, column tap).
struct Windows {
  Axis rows, cols;

  int64_t per_image() const { return rows.windows * cols.windows; }
  int64_t taps() const { return rows.taps * cols.taps; }
};

// Consecutive windows in one row of one image.
struct Span {
  int64_t image, row, col;
  int done, count;  // position in the panel
};

// Calls body(span) for each row's share of windows i .. i + count - 1.
template <class Body>
REFORMER_INLINE void for_each_span(const Windows& windows, int64_t i, int count, const Body& body) {
  int64_t image = i / windows.per_image(), row = i % windows.per_image() / windows.cols.windows;
  int64_t col = i % windows.cols.windows;
  for (int done = 0; done < count;) {
    const int n = int(std::min<int64_t>(count - done, windows.cols.windows - col));
    body(Span{image, row, col, done, n});
    done += n;
    col = 0;
    if (++row == windows.rows.windows) row = 0, ++image;
  }
}

// The range [begin, end) of a span's windows for which a tap is inside the source. `at`: the column of window 0.
struct Inside {
  int begin, end;
  int64_t at;

  static Inside of(const Axis& cols, const Span& span, int64_t tap) {
    const int64_t at = cols.at(span.col, tap), step = cols.step;
    const int64_t begin = at >= 0 ? 0 : std::min<int64_t>(span.count, ceil_div(-at, step));
    const int64_t end = at >= cols.size ? 0 : std::min<int64_t>(span.count, (cols.size - 1 - at) / step + 1);
    return {int(begin), int(std::max(begin, end)), at};
  }
};

// Loads lanes [begin, end) of a vector; the others are zero, and their memory is not accessed.
template <class S, class T>
REFORMER_INLINE Vec<S> load_lanes(const T* from, int begin, int end) {
  constexpr int L = kLanes<S>;
  if (begin == 0 && end == L) return load<S>(from);
#if defined(REFORMER_ISA_AVX512)
  const unsigned lanes = begin < end ? (1u << end) - (1u << begin) : 0;
  if constexpr (std::is_same_v<T, float>) return (Vec<S>)_mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), from);
  if constexpr (std::is_same_v<T, double>) return (Vec<S>)_mm512_maskz_loadu_pd(static_cast<__mmask8>(lanes), from);
#endif
  T buffer[L] = {};
  for (int i = begin; i < end; ++i) buffer[i] = from[i];
  return load<S>(static_cast<const T*>(buffer));
}

// to[i] = the value of window i of the span, for all its windows.
template <class S, class T>
REFORMER_INLINE void gather_span(S* to, const T* source_row, const Inside& inside, int count, int64_t step) {
  constexpr int L = kLanes<S>;
  if (step == 1) {
    for (int i = 0; i < count; i += L) {
      const int n = std::min(L, count - i);
      const Vec<S> v =
          load_lanes<S>(source_row + inside.at + i, std::max(0, inside.begin - i), std::min(n, inside.end - i));
      if (n == L)
        store<S>(to + i, v);
      else
        store_part<S>(to + i, v, n);
    }
  } else {
    for (int i = 0; i < inside.begin; ++i) to[i] = 0;
    for (int i = inside.begin; i < inside.end; ++i) to[i] = Element<T>::load(source_row[inside.at + i * step]);
    for (int i = inside.end; i < count; ++i) to[i] = 0;
  }
}

// Lanes [begin, end) of a vector of windows, read from from + begin, from + begin + step, ... in every channel's plane.
struct Piece {
  int32_t from;
  uint16_t vector;
  uint8_t begin, end;
};

// One tap's row of a panel. Lanes in no piece are padding.
template <class S, class T>
REFORMER_INLINE void gather_row(S* to, int vectors, const T* plane, const Piece* piece, const Piece* last,
                                int64_t step) {
  constexpr int L = kLanes<S>;
#if defined(REFORMER_ISA_AVX512)
  if constexpr (std::is_same_v<S, T>) {
    if (step == 1) {
      for (int v = 0; v < vectors; ++v) {
        Vec<S> value{};
        for (; piece < last && piece->vector == v; ++piece) {
          const unsigned lanes = (1u << piece->end) - (1u << piece->begin);
          if constexpr (std::is_same_v<S, float>)
            value = (Vec<S>)_mm512_mask_loadu_ps((__m512)value, static_cast<__mmask16>(lanes), plane + piece->from);
          else
            value = (Vec<S>)_mm512_mask_loadu_pd((__m512d)value, static_cast<__mmask8>(lanes), plane + piece->from);
        }
        store<S>(to + v * L, value);
      }
      return;
    }
  }
#endif
  std::fill_n(to, vectors * L, S(0));
  for (; piece < last; ++piece)
    for (int lane = piece->begin; lane < piece->end; ++lane)
      to[piece->vector * L + lane] = Element<T>::load(plane[piece->from + lane * step]);
}

// In NCHW, a right operand: B(d, i) is the element of window i for channel and tap d = (channel, row tap, column tap).
template <class S, class T>
struct WindowColumns {
  const T* data;  // channel 0
  int64_t image;  // elements from one image to the next
  Windows windows;

  // The windows inside the source are computed for each tap once for all channels, for as many taps at a time as fit
  // the list.
  Panel<S> right(int64_t i, int count, int64_t d, int64_t depth, S* buffer, int64_t) const {
    constexpr int kPieces = 1024, kTaps = 64, kPiecesOfTap = kTileCols<S> + kTileVectors;
    Piece pieces[kPieces];
    int begin[kTaps + 1];
    const int64_t plane = windows.rows.size * windows.cols.size, taps = windows.taps();
    const int vectors = (count + kLanes<S> - 1) / kLanes<S>;
    for (int64_t first_tap = 0; first_tap < taps;) {
      int chunk = 0, used = 0;
      for (; first_tap + chunk < taps && chunk < kTaps && used + kPiecesOfTap <= kPieces; ++chunk) {
        begin[chunk] = used;
        used = add_pieces(pieces, used, i, count, first_tap + chunk);
      }
      begin[chunk] = used;
      for (int64_t c = d / taps; c * taps < d + depth; ++c)
        for (int tap = 0; tap < chunk; ++tap) {
          const int64_t step = c * taps + first_tap + tap - d;
          if (step >= 0 && step < depth)
            gather_row(buffer + step * kTileCols<S>, vectors, data + c * plane, pieces + begin[tap],
                       pieces + begin[tap + 1], windows.cols.step);
        }
      first_tap += chunk;
    }
    return {buffer, 1, kTileCols<S>};
  }

 private:
  int add_pieces(Piece* pieces, int used, int64_t i, int count, int64_t tap) const {
    constexpr int L = kLanes<S>;
    const Axis &rows = windows.rows, &cols = windows.cols;
    for_each_span(windows, i, count, [&](const Span& span) {
      const int64_t row = rows.at(span.row, tap / cols.taps);
      if (!rows.inside(row)) return;
      const Inside inside = Inside::of(cols, span, tap % cols.taps);
      const int64_t at = span.image * image + row * cols.size + inside.at - span.done * cols.step;  // of column 0
      for (int from = span.done + inside.begin, end = span.done + inside.end; from < end;) {
        const int vector = from / L, stop = std::min(end, (vector + 1) * L);
        pieces[used++] = {int32_t(at + vector * L * cols.step), uint16_t(vector), uint8_t(from - vector * L),
                          uint8_t(stop - vector * L)};
        from = stop;
      }
    });
    return used;
  }
};

// In NCHW, for sums over windows: B(d, i) is the element of window d for channel and tap i.
template <class S, class T>
struct WindowRows {
  const T* data;
  int64_t image;
  Windows windows;

  Panel<S> right(int64_t i, int count, int64_t d, int64_t depth, S* buffer, int64_t) const {
    alignas(64) S row[kLanes<S>][kMaxDepth<S> + kLanes<S>];  // dense rows, transposed a vector of rows at a time
    transpose_panel<kTileCols<S>, S>(buffer, count, depth, [&](int column) -> const S* {
      S* to = row[column % kLanes<S>];
      gather_row(to, i + column, d, depth);
      return to;
    });
    return {buffer, 1, kTileCols<S>};
  }

 private:
  void gather_row(S* to, int64_t i, int64_t d, int64_t depth) const {
    const Axis &rows = windows.rows, &cols = windows.cols;
    const int64_t channel = i / windows.taps(), tap = i % windows.taps();
    const T* plane = data + channel * rows.size * cols.size;
    for_each_span(windows, d, int(depth), [&](const Span& span) {
      const int64_t row = rows.at(span.row, tap / cols.taps);
      const Inside inside = rows.inside(row) ? Inside::of(cols, span, tap % cols.taps) : Inside{0, 0, 0};
      gather_span(to + span.done, plane + span.image * image + row * cols.size, inside, span.count, cols.step);
    });
  }
};

// In NHWC: the element of window i for tap and channel d = (row tap, column tap, channel).
template <class S, class T>
struct WindowChannels {
  const T* data;            // channel 0 of the group
  int64_t channels, pixel;  // channels: of the group; pixel: elements from one pixel to the next
  Windows windows;

  // The source pixel of a window and a tap; null in the padding.
  const T* at(int64_t i, int64_t tap) const {
    const Axis &rows = windows.rows, &cols = windows.cols;
    const int64_t row = rows.at(i % windows.per_image() / cols.windows, tap / cols.taps);
    const int64_t col = cols.at(i % cols.windows, tap % cols.taps);
    if (!rows.inside(row) || !cols.inside(col)) return nullptr;
    return data + ((i / windows.per_image() * rows.size + row) * cols.size + col) * pixel;
  }
  // Calls body(tap, first channel, done, count) for each tap's share of d .. d + depth - 1.
  template <class Body>
  REFORMER_INLINE void taps(int64_t d, int64_t depth, const Body& body) const {
    for (int64_t done = 0; done < depth;) {
      const int64_t channel = (d + done) % channels, count = std::min(depth - done, channels - channel);
      body((d + done) / channels, channel, done, count);
      done += count;
    }
  }

  // A(i, d), for sums over taps and channels.
  Panel<S> left(int64_t i, int count, int64_t d, int64_t depth, S* buffer) const {
    taps(d, depth, [&](int64_t tap, int64_t channel, int64_t done, int64_t channels_here) {
      transpose_panel<kTileRows, S>(buffer + done * kTileRows, count, channels_here, [&](int row) -> const T* {
        const T* from = at(i + row, tap);
        return from ? from + channel : nullptr;
      });
    });
    return {buffer, 1, kTileRows};
  }
  // B(d, i), for sums over windows d; i is a tap and channel.
  Panel<S> right(int64_t i, int count, int64_t d, int64_t depth, S* buffer, int64_t) const {
    for (int64_t step = 0; step < depth; ++step)
      taps(i, count, [&](int64_t tap, int64_t channel, int64_t done, int64_t channels_here) {
        S* to = buffer + step * kTileCols<S> + done;
        if (const T* from = at(d + step, tap))
          widen(to, from + channel, int(channels_here));
        else
          std::fill_n(to, channels_here, S(0));
      });
    return {buffer, 1, kTileCols<S>};
  }
};

}  // namespace reformer::REFORMER_ISA
