// Tensors viewed as matrices, part of gemm.h. Each operand provides panels of consecutive rows (left operand) or
// columns (right operand) of the product, without copying if the register tile can read them in place.

namespace reformer::REFORMER_ISA {

// A right operand with at most this many rows is read in place where possible. With more rows, packing it costs less
// than reading it repeatedly with a stride.
constexpr int64_t kDirectRows = 64;

// Offsets that grow by a constant step.
struct Affine {
  int64_t stride;
  static constexpr bool affine = true;
  int64_t operator()(int64_t i) const { return i * stride; }
};

// Operand with element (i, d) at data[offset(i) + d]: contiguous along the sum.
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

// Operand with element (i, d) at data[offset(d) + i]: contiguous across the sum.
template <class S, class T, class Offset>
struct AcrossSum {
  const T* data;
  const T* end;  // of the readable memory
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

// Result with row m at data[offset(m)], dense along n.
template <class S, class T, class Offset>
struct OutRows {
  static constexpr bool rounds = !std::is_same_v<S, T>;
  T* data;
  Offset offset;
  const S* col_bias_data = nullptr;  // one per output column, or null

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
