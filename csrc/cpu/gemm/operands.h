// Matrices that tensors are read as, as part of gemm.h. Each hands out panels of consecutive rows
// (left operand) or columns (right operand) of the product, in place where the register tile can read them there.

namespace reformer::REFORMER_ISA {

// With at most this many rows a right operand is read in place where it can be: with more, packing it costs less than
// walking through it with a stride again and again.
constexpr int64_t kDirectRows = 64;

// Offsets that grow by a constant.
struct Affine {
  int64_t stride;
  static constexpr bool affine = true;
  int64_t operator()(int64_t i) const { return i * stride; }
};

// Element (i, d) at data[offset(i) + d]: consecutive along the sum.
template <class S, class T, class Offset>
struct AlongSum {
  const T* data;
  Offset offset;

  template <int WIDTH>
  Panel<S> pack(int64_t i, int count, int64_t d, int64_t depth, S* buffer) const {
    transpose_panel<WIDTH, S>(buffer, count, depth, [&](int row) { return data + offset(i + row) + d; });
    return {buffer, 1, WIDTH};
  }
  Panel<S> left(int64_t i, int count, int64_t d, int64_t depth, S* buffer) const {
    if constexpr (std::is_same_v<S, T> && Offset::affine) return {data + offset(i) + d, offset.stride, 1};
    return pack<kTileRows>(i, count, d, depth, buffer);
  }
  Panel<S> right(int64_t i, int count, int64_t d, int64_t depth, S* buffer, int64_t) const {
    return pack<kTileCols<S>>(i, count, d, depth, buffer);
  }
};

// Element (i, d) at data[offset(d) + i]: consecutive across the sum.
template <class S, class T, class Offset>
struct AcrossSum {
  const T* data;
  const T* end;  // of the memory that may be read
  Offset offset;

  Panel<S> pack(int64_t i, int count, int64_t d, int64_t depth, S* buffer, int width) const {
    for (int64_t step = 0; step < depth; ++step) widen(buffer + step * width, data + offset(d + step) + i, count);
    return {buffer, 1, width};
  }
  Panel<S> left(int64_t i, int count, int64_t d, int64_t depth, S* buffer) const {
    if constexpr (std::is_same_v<S, T> && Offset::affine) return {data + offset(d) + i, 1, offset.stride};
    return pack(i, count, d, depth, buffer, kTileRows);
  }
  Panel<S> right(int64_t i, int count, int64_t d, int64_t depth, S* buffer, int64_t rows) const {
    if constexpr (std::is_same_v<S, T> && Offset::affine)
      if (rows <= kDirectRows && data + offset(d + depth - 1) + i + kTileCols<S> <= end)
        return {data + offset(d) + i, 1, offset.stride};
    return pack(i, count, d, depth, buffer, kTileCols<S>);
  }
};

// The product's rows at data[offset(m)], dense along n.
template <class S, class T, class Offset>
struct OutRows {
  static constexpr bool rounds = !std::is_same_v<S, T>;
  T* data;
  Offset offset;
  const S* col_bias_data = nullptr;  // one an output column, or null

  const S* row_bias() const { return nullptr; }
  const S* col_bias() const { return col_bias_data; }
  Rows<S> direct(int64_t m, int64_t n, int) const {
    if constexpr (std::is_same_v<S, T> && Offset::affine) return {data + offset(m) + n, offset.stride};
    return {nullptr, 0};
  }
  void load(S* tile, int64_t m, int rows, int64_t n, int cols) const {
    for (int row = 0; row < rows; ++row) widen(tile + row * kTileCols<S>, data + offset(m + row) + n, cols);
  }
  void store(const S* tile, int64_t tile_row, int64_t m, int rows, int64_t n, int cols) const {
    for (int row = 0; row < rows; ++row) narrow(data + offset(m + row) + n, tile + row * tile_row, cols);
  }
};

}  // namespace reformer::REFORMER_ISA
