// NCHW images as matrices, part of gemm.h. Rows are channels, and columns are the pixels of all images one after
// another, so that tiles are full even if images are small.

namespace reformer::REFORMER_ISA {

// The output pixels of a 1x1 convolution and their positions in a tensor: in the output itself (stride 1), or in the
// input, where a block of stride_h x stride_w elements belongs to each output pixel.
struct Pixels {
  int64_t out_h, out_w;
  int64_t h, w;  // of that tensor
  int64_t stride_h, stride_w;

  int64_t count() const { return out_h * out_w; }
  bool dense() const { return stride_h == 1 && stride_w == 1; }
  // The block of a pixel extends to the next pixel's, or to the edge of the image.
  int64_t rows_of(int64_t pixel) const {
    const int64_t row = pixel / out_w;
    return row + 1 < out_h ? stride_h : h - row * stride_h;
  }
  int64_t cols_of(int64_t pixel) const {
    const int64_t col = pixel % out_w;
    return col + 1 < out_w ? stride_w : w - col * stride_w;
  }
  int64_t position(int64_t pixel) const { return pixel / out_w * stride_h * w + pixel % out_w * stride_w; }
};

// Offsets of the pixels' channels in NHWC; an image has h * w * channels elements.
struct PixelRows {
  Pixels pixels;
  int64_t channels;
  static constexpr bool affine = false;

  int64_t operator()(int64_t i) const {
    return (i / pixels.count() * pixels.h * pixels.w + pixels.position(i % pixels.count())) * channels;
  }
};

template <class T>
struct Images {
  T* data;
  T* end;         // of the readable memory
  int64_t image;  // elements from one image to the next
  Pixels pixels;

  int64_t plane() const { return pixels.h * pixels.w; }

  // Calls body(pointer to channel 0, first column, columns) for each image's share of these columns. Only if pixels are
  // dense.
  template <class Body>
  REFORMER_INLINE void spans(int64_t n, int cols, const Body& body) const {
    int64_t index = n / pixels.count(), pixel = n % pixels.count();
    for (int done = 0; done < cols; ++index, pixel = 0) {
      const int span = int(std::min<int64_t>(cols - done, pixels.count() - pixel));
      body(data + index * image + pixel, done, span);
      done += span;
    }
  }
  T* at(int64_t n) const { return data + n / pixels.count() * image + pixels.position(n % pixels.count()); }
  // Pointer to the first of the columns if they are contiguous in memory, else null.
  T* contiguous(int64_t n, int cols) const {
    return pixels.dense() && n % pixels.count() + cols <= pixels.count() ? at(n) : nullptr;
  }
};

// Right operand B(d, n): channel d at column n.
template <class S, class T>
struct ImageColumns {
  Images<const T> images;

  Panel<S> right(int64_t n, int cols, int64_t d, int64_t depth, S* buffer, int64_t /*rows*/) const {
    const int64_t plane = images.plane();
    if constexpr (std::is_same_v<S, T>) {
      const T* from = images.contiguous(n, cols);
      if (from && from + (d + depth - 1) * plane + kTileCols<S> <= images.end) return {from + d * plane, 1, plane};
    }
    if (images.pixels.dense()) {
      for (int64_t step = 0; step < depth; ++step)
        images.spans(n, cols, [&](const T* from, int first, int span) {
          widen(buffer + step * kTileCols<S> + first, from + (d + step) * plane, span);
        });
    } else {
      const T* from[kTileCols<S>];
      for (int i = 0; i < cols; ++i) from[i] = images.at(n + i) + d * plane;
      for (int64_t step = 0; step < depth; ++step)
        for (int i = 0; i < cols; ++i) buffer[step * kTileCols<S> + i] = Element<T>::load(from[i][step * plane]);
    }
    return {buffer, 1, kTileCols<S>};
  }
};

// Operand whose element (i, d) is channel i at column d, for sums over all pixels.
template <class S, class T>
struct ImageRows {
  Images<const T> images;

  template <int WIDTH>
  Panel<S> pack(int64_t i, int count, int64_t d, int64_t depth, S* buffer) const {
    const int64_t plane = images.plane();
    if (images.pixels.dense()) {
      images.spans(d, int(depth), [&](const T* from, int first, int span) {
        transpose_panel<WIDTH, S>(buffer + first * WIDTH, count, span,
                                  [&](int row) { return from + (i + row) * plane; });
      });
    } else {
      for (int64_t step = 0; step < depth; ++step) {
        const T* from = images.at(d + step) + i * plane;
        for (int row = 0; row < count; ++row) buffer[step * WIDTH + row] = Element<T>::load(from[row * plane]);
      }
    }
    return {buffer, 1, WIDTH};
  }
  Panel<S> left(int64_t i, int count, int64_t d, int64_t depth, S* buffer) const {
    if constexpr (std::is_same_v<S, T>)
      if (const T* from = images.contiguous(d, int(depth))) return {from + i * images.plane(), images.plane(), 1};
    return pack<kTileRows>(i, count, d, depth, buffer);
  }
  Panel<S> right(int64_t i, int count, int64_t d, int64_t depth, S* buffer, int64_t) const {
    return pack<kTileCols<S>>(i, count, d, depth, buffer);
  }
};

// Result C(m, n): channel m at column n. All elements of a strided image are written, with zeros between the pixels
// unless `fill` is false.
template <class S, class T>
struct OutImages {
  static constexpr bool rounds = !std::is_same_v<S, T>;
  Images<T> images;
  const S* row_bias_data = nullptr;  // one per channel, or null
  bool fill = true;                  // also write the zeros

  const S* row_bias() const { return row_bias_data; }
  const S* col_bias() const { return nullptr; }
  Rows<S> direct(int64_t m, int64_t n, int cols) const {
    if constexpr (!rounds)
      if (T* to = images.contiguous(n, cols)) return {to + m * images.plane(), images.plane()};
    return {nullptr, 0};
  }
  void load(S* tile, int64_t m, int rows, int64_t n, int cols) const {
    for (int i = 0; i < cols; ++i) {
      const T* from = images.at(n + i) + m * images.plane();
      for (int row = 0; row < rows; ++row) tile[row * kTileCols<S> + i] = Element<T>::load(from[row * images.plane()]);
    }
  }
  void store(const S* tile, int64_t tile_row, int64_t m, int rows, int64_t n, int cols) const {
    const int64_t plane = images.plane();
    if (images.pixels.dense()) {
      images.spans(n, cols, [&](T* to, int first, int span) {
        for (int row = 0; row < rows; ++row) narrow(to + (m + row) * plane, tile + row * tile_row + first, span);
      });
      return;
    }
    for (int i = 0; i < cols; ++i)
      for (int row = 0; row < rows; ++row)
        store_block(images.at(n + i) + (m + row) * plane, (n + i) % images.pixels.count(),
                    Element<T>::store(tile[row * tile_row + i]));
  }

 private:
  // Stores the value, and zeros up to the next pixel or the edge of the image.
  void store_block(T* to, int64_t pixel, T value) const {
    *to = value;
    if (!fill) return;
    const int64_t rows = images.pixels.rows_of(pixel), cols = images.pixels.cols_of(pixel);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < cols; ++col) to[row * images.pixels.w + col] = row + col == 0 ? value : T(0);
  }
};

// Result in NHWC: C(m, n) is channel n at pixel m.
template <class S, class T>
struct OutPixelRows {
  static constexpr bool rounds = !std::is_same_v<S, T>;
  T* data;
  PixelRows offset;
  bool fill = true;

  const S* row_bias() const { return nullptr; }
  const S* col_bias() const { return nullptr; }
  Rows<S> direct(int64_t m, int64_t n, int) const {
    if constexpr (!rounds)
      if (offset.pixels.dense()) return {data + offset(m) + n, offset.channels};
    return {nullptr, 0};
  }
  void load(S* tile, int64_t m, int rows, int64_t n, int cols) const {
    for (int i = 0; i < rows; ++i) widen(tile + i * kTileCols<S>, data + offset(m + i) + n, cols);
  }
  void store(const S* tile, int64_t tile_row, int64_t m, int rows, int64_t n, int cols) const {
    const Pixels& p = offset.pixels;
    for (int i = 0; i < rows; ++i) {
      T* to = data + offset(m + i) + n;
      narrow(to, tile + i * tile_row, cols);
      if (!fill) continue;
      const int64_t pixel = (m + i) % p.count(), block_rows = p.rows_of(pixel), block_cols = p.cols_of(pixel);
      for (int64_t row = 0; row < block_rows; ++row)
        for (int64_t col = 0; col < block_cols; ++col)
          if (row + col > 0) std::fill_n(to + (row * p.w + col) * offset.channels, cols, T(0));
    }
  }
};

}  // namespace reformer::REFORMER_ISA
