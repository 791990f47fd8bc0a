// Blocked matrix products, part of an ISA body (no include guard): C(m, n) = bias + sum over d of A(m, d) B(d, n). The
// operands are objects that provide panels (operands.h), so a convolution's matrices are never stored as such.
// clang-format off: each needs those before it
#include "tile_shape.h"
#include "pack.h"
#include "operands.h"
#include "images.h"
#include "windows.h"
// clang-format on

namespace reformer::REFORMER_ISA {

// Panels of B that stay in the second-level cache while all panels of A are read.
constexpr int64_t kResidentBytes = 384 << 10;  // of a second-level cache of 1 MiB or more
constexpr int kResidentPanels = 128;

// If the result's type would round partial sums over d, they are kept in fp32, in a buffer of this many elements.
constexpr int64_t kUnroundedSize = 64 << 10;

// The operands and the result as function pointers on objects. Gemm calls one for each panel or tile, which costs
// nothing compared with the panel's products; so Gemm is compiled once for S and not for each combination of the three.
template <class S>
struct GemmLeft {
  const void* object;
  Panel<S> (*panel)(const void* object, int64_t i, int count, int64_t d, int64_t depth, S* buffer);
};
template <class S>
struct GemmRight {
  const void* object;
  Panel<S> (*panel)(const void* object, int64_t i, int count, int64_t d, int64_t depth, S* buffer, int64_t rows);
};
template <class S>
struct GemmOut {
  const void* object;
  bool rounds;                   // true if storing a partial sum would round it
  const S *row_bias, *col_bias;  // one per row or column, or null
  Rows<S> (*direct)(const void* object, int64_t m, int64_t n, int cols);
  void (*load)(const void* object, S* tile, int64_t m, int rows, int64_t n, int cols);
  void (*store)(const void* object, const S* tile, int64_t tile_row, int64_t m, int rows, int64_t n, int cols);
};

template <class S, class Left>
Panel<S> left_panel(const void* left, int64_t i, int count, int64_t d, int64_t depth, S* buffer) {
  return static_cast<const Left*>(left)->left(i, count, d, depth, buffer);
}
template <class S, class Right>
Panel<S> right_panel(const void* right, int64_t i, int count, int64_t d, int64_t depth, S* buffer, int64_t rows) {
  return static_cast<const Right*>(right)->right(i, count, d, depth, buffer, rows);
}
template <class S, class Out>
Rows<S> direct_rows(const void* out, int64_t m, int64_t n, int cols) {
  return static_cast<const Out*>(out)->direct(m, n, cols);
}
template <class S, class Out>
void load_tile(const void* out, S* tile, int64_t m, int rows, int64_t n, int cols) {
  static_cast<const Out*>(out)->load(tile, m, rows, n, cols);
}
template <class S, class Out>
void store_tile(const void* out, const S* tile, int64_t tile_row, int64_t m, int rows, int64_t n, int cols) {
  static_cast<const Out*>(out)->store(tile, tile_row, m, rows, n, cols);
}

template <class S>
class Gemm {
 public:
  Gemm(Isa isa, const GemmLeft<S>& left, const GemmRight<S>& right, const GemmOut<S>& out)
      : kernels_(gemm_kernels<S>(isa)), left_(left), right_(right), out_(out) {}

  void run(const GemmPart& part) const;

 private:
  struct Block {
    S *left_buffer, *right_buffer;
    S* sums;  // for a block of the result, or null
    int64_t sums_row, max_depth;
  };

  // Computes a block; the columns of `part` fill at most kResidentPanels panels.
  void run_block(const GemmPart& part, const Block& block) const {
    Panel<S> resident[kResidentPanels];
    int64_t d = part.d0;
    do {
      const int64_t depth = std::min(block.max_depth, part.d1 - d);
      for (int64_t n = part.n0, i = 0; n < part.n1; n += kTileCols<S>, ++i)
        resident[i] = right_.panel(right_.object, n, cols_at(part, n), d, depth,
                                   block.right_buffer + i * kTileCols<S> * block.max_depth, part.m1 - part.m0);
      for (int64_t m = part.m0; m < part.m1; m += kTileRows) {
        const int rows = int(std::min<int64_t>(kTileRows, part.m1 - m));
        const Panel<S> a = left_.panel(left_.object, m, rows, d, depth, block.left_buffer);
        for (int64_t n = part.n0, i = 0; n < part.n1; n += kTileCols<S>, ++i) {
          GemmTile<S> tile{depth,
                           a.data,
                           a.row,
                           a.step,
                           resident[i].data,
                           resident[i].step,
                           nullptr,
                           0,
                           cols_at(part, n),
                           d > part.d0,
                           bias_at(out_.row_bias, m),
                           bias_at(out_.col_bias, n)};
          if (block.sums) {
            tile.c = block.sums + (m - part.m0) * block.sums_row + n - part.n0;
            tile.c_row = block.sums_row;
            kernels_.run(rows, tile);
            if (d + depth == part.d1) out_.store(out_.object, tile.c, tile.c_row, m, rows, n, tile.cols);
          } else {
            run_tile(tile, m, rows, n);
          }
        }
      }
      d += depth;
    } while (d < part.d1);
  }

  static const S* bias_at(const S* bias, int64_t i) { return bias ? bias + i : nullptr; }
  static int cols_at(const GemmPart& part, int64_t n) { return int(std::min<int64_t>(kTileCols<S>, part.n1 - n)); }

  // Computes in place if the result is stored in rows, else via a buffer.
  void run_tile(GemmTile<S> tile, int64_t m, int rows, int64_t n) const {
    const Rows<S> direct = out_.direct(out_.object, m, n, tile.cols);
    alignas(64) S buffer[kTileRows * kTileCols<S> + kLanes<S>];
    tile.c = direct.data ? direct.data : buffer;
    tile.c_row = direct.data ? direct.row : kTileCols<S>;
    if (!direct.data && tile.accumulate) out_.load(out_.object, buffer, m, rows, n, tile.cols);
    kernels_.run(rows, tile);
    if (!direct.data) out_.store(out_.object, buffer, kTileCols<S>, m, rows, n, tile.cols);
  }

  const GemmKernels<S>& kernels_;
  const GemmLeft<S> left_;
  const GemmRight<S> right_;
  const GemmOut<S> out_;
};

// Defined outside the class, where it would be inlined for each combination of operands.
template <class S>
void Gemm<S>::run(const GemmPart& part) const {
  const int64_t depths = std::max<int64_t>(1, ceil_div(part.d1 - part.d0, kMaxDepth<S>));
  const int64_t max_depth = ceil_div(part.d1 - part.d0, depths);
  const int64_t right_panel_size = kTileCols<S> * max_depth;
  const int64_t panels =
      std::clamp<int64_t>(kResidentBytes / int64_t(sizeof(S)) / std::max<int64_t>(1, right_panel_size), 1,
                          std::min<int64_t>(kResidentPanels, ceil_div(part.n1 - part.n0, kTileCols<S>)));
  const int64_t block_cols = panels * kTileCols<S>;
  const bool unrounded = out_.rounds && depths > 1;
  const int64_t block_rows =
      unrounded ? std::max<int64_t>(1, kUnroundedSize / block_cols / kTileRows) * kTileRows : part.m1 - part.m0;

  // Packing writes whole vectors: each buffer ends with room for one more.
  const int64_t room = kLanes<S>, left_size = kTileRows * max_depth + room,
                right_size = panels * right_panel_size + room;
  const int64_t sums_size = unrounded ? block_rows * block_cols + room : 0;
  S* const left_buffer = static_cast<S*>(thread_scratch((left_size + right_size + sums_size) * int64_t(sizeof(S))));
  const Block block{left_buffer, left_buffer + left_size, unrounded ? left_buffer + left_size + right_size : nullptr,
                    block_cols, max_depth};

  for (int64_t m = part.m0; m < part.m1; m += block_rows)
    for (int64_t n = part.n0; n < part.n1; n += block_cols)
      run_block({m, std::min(part.m1, m + block_rows), n, std::min(part.n1, n + block_cols), part.d0, part.d1}, block);
}

template <class S, class Left, class Right, class Out>
void multiply(Isa isa, const Left& left, const Right& right, const Out& out, const GemmPart& part) {
  Gemm<S>(
      isa, {&left, left_panel<S, Left>}, {&right, right_panel<S, Right>},
      {&out, Out::rounds, out.row_bias(), out.col_bias(), direct_rows<S, Out>, load_tile<S, Out>, store_tile<S, Out>})
      .run(part);
}

}  // namespace reformer::REFORMER_ISA

// clang-format off
#include "parts.h"
#include "weight_grad.h"
// clang-format on
