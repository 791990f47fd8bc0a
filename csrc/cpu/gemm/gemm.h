// Blocked matrix products, as part of an ISA body (no include guard): C(m, n) = bias + sum over d of A(m, d) B(d, n).
// The operands are objects that hand out panels (operands.h), so a convolution's matrices need never exist in memory.
// clang-format off: each needs those before it
#include "tile_shape.h"
#include "pack.h"
#include "operands.h"
#include "images.h"
#include "windows.h"
// clang-format on

namespace reformer::REFORMER_ISA {

// The part of a product that one thread computes.
struct GemmPart {
  int64_t m0, m1, n0, n1, d0, d1;
};

// Panels of B that stay in the level-2 cache while those of A pass by.
constexpr int64_t kKeptBytes = 384 << 10;  // of a level-2 cache of 1 MiB or more
constexpr int kKeptPanels = 128;

// Sums of several cuts are kept in fp32 for a result that would round them: this many elements.
constexpr int64_t kUnroundedSize = 64 << 10;

template <class S, class Left, class Right, class Out>
class Gemm {
 public:
  Gemm(Isa isa, const Left& left, const Right& right, const Out& out)
      : kernels_(gemm_kernels<S>(isa)), left_(left), right_(right), out_(out) {}

  void run(const GemmPart& part) const {
    const int64_t cuts = std::max<int64_t>(1, ceil_div(part.d1 - part.d0, kMaxDepth<S>));
    const int64_t max_depth = ceil_div(part.d1 - part.d0, cuts);
    const int64_t kept_size = kTileCols<S> * max_depth;
    const int64_t panels =
        std::clamp<int64_t>(kKeptBytes / int64_t(sizeof(S)) / std::max<int64_t>(1, kept_size), 1,
                            std::min<int64_t>(kKeptPanels, ceil_div(part.n1 - part.n0, kTileCols<S>)));
    const int64_t block_cols = panels * kTileCols<S>;
    const bool unrounded = Out::rounds && cuts > 1;
    const int64_t block_rows =
        unrounded ? std::max<int64_t>(1, kUnroundedSize / block_cols / kTileRows) * kTileRows : part.m1 - part.m0;

    // Packing writes whole vectors: each buffer ends with room for one more.
    const int64_t room = kLanes<S>, left_size = kTileRows * max_depth + room, right_size = panels * kept_size + room;
    const int64_t sums_size = unrounded ? block_rows * block_cols + room : 0;
    S* const left_buffer = static_cast<S*>(thread_scratch((left_size + right_size + sums_size) * int64_t(sizeof(S))));
    const Block block{left_buffer, left_buffer + left_size, unrounded ? left_buffer + left_size + right_size : nullptr,
                      block_cols, max_depth};

    for (int64_t m = part.m0; m < part.m1; m += block_rows)
      for (int64_t n = part.n0; n < part.n1; n += block_cols)
        run_block({m, std::min(part.m1, m + block_rows), n, std::min(part.n1, n + block_cols), part.d0, part.d1},
                  block);
  }

 private:
  struct Block {
    S *left_buffer, *right_buffer;
    S* sums;  // of a block of the result, or null
    int64_t sums_row, max_depth;
  };

  // The columns of `part` fill at most kKeptPanels panels.
  void run_block(const GemmPart& part, const Block& block) const {
    Panel<S> kept[kKeptPanels];
    int64_t d = part.d0;
    do {
      const int64_t depth = std::min(block.max_depth, part.d1 - d);
      for (int64_t n = part.n0, i = 0; n < part.n1; n += kTileCols<S>, ++i)
        kept[i] = right_.right(n, cols_at(part, n), d, depth, block.right_buffer + i * kTileCols<S> * block.max_depth,
                               part.m1 - part.m0);
      for (int64_t m = part.m0; m < part.m1; m += kTileRows) {
        const int rows = int(std::min<int64_t>(kTileRows, part.m1 - m));
        const Panel<S> a = left_.left(m, rows, d, depth, block.left_buffer);
        for (int64_t n = part.n0, i = 0; n < part.n1; n += kTileCols<S>, ++i) {
          GemmTile<S> tile{
              depth, a.data,           a.row,       a.step,           kept[i].data,    kept[i].step, nullptr,
              0,     cols_at(part, n), d > part.d0, out_.row_bias(m), out_.col_bias(n)};
          if (block.sums) {
            tile.c = block.sums + (m - part.m0) * block.sums_row + n - part.n0;
            tile.c_row = block.sums_row;
            kernels_.run(rows, tile);
            if (d + depth == part.d1) out_.store(tile.c, tile.c_row, m, rows, n, tile.cols);
          } else {
            run_tile(tile, m, rows, n);
          }
        }
      }
      d += depth;
    } while (d < part.d1);
  }

  static int cols_at(const GemmPart& part, int64_t n) { return int(std::min<int64_t>(kTileCols<S>, part.n1 - n)); }

  // In place where the result lies in rows, else by way of a buffer.
  void run_tile(GemmTile<S> tile, int64_t m, int rows, int64_t n) const {
    const Rows<S> direct = out_.direct(m, n, tile.cols);
    alignas(64) S buffer[kTileRows * kTileCols<S> + kLanes<S>];
    tile.c = direct.data ? direct.data : buffer;
    tile.c_row = direct.data ? direct.row : kTileCols<S>;
    if (!direct.data && tile.accumulate) out_.load(buffer, m, rows, n, tile.cols);
    kernels_.run(rows, tile);
    if (!direct.data) out_.store(buffer, kTileCols<S>, m, rows, n, tile.cols);
  }

  const GemmKernels<S>& kernels_;
  const Left& left_;
  const Right& right_;
  const Out& out_;
};

template <class S, class Left, class Right, class Out>
void multiply(Isa isa, const Left& left, const Right& right, const Out& out, const GemmPart& part) {
  Gemm<S, Left, Right, Out>(isa, left, right, out).run(part);
}

}  // namespace reformer::REFORMER_ISA

// clang-format off
#include "parts.h"
#include "weight_grad.h"
// clang-format on
