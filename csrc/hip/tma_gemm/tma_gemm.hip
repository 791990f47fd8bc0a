// Matrix products for 1 x 1 convolutions with Hopper's TMA and wgmma; see tma_tiles.h.
#define REFORMER_ON_SUMS  // device/functions.h
#include "tma_tiles.h"

#if defined(REFORMER_TMA)
namespace reformer {
namespace {

enum class What { forward, input_grad, weight_grad, forward_nchw, input_grad_nchw, weight_grad_nchw };

template <What kWhat>
struct Traits {
  static constexpr bool kNchw = kWhat >= What::forward_nchw;
  static constexpr bool kForward = kWhat == What::forward || kWhat == What::forward_nchw;
  static constexpr bool kWeightGrad = kWhat == What::weight_grad || kWhat == What::weight_grad_nchw;
  static constexpr Lines kLinesA = kWeightGrad == kNchw ? Lines::kAlongDepth : Lines::kAlongOuter;
  static constexpr Lines kLinesB = kForward || (kWeightGrad && kNchw) ? Lines::kAlongDepth : Lines::kAlongOuter;
};

// Copies a tile of an NCHW tensor, in which each image has a matrix of its own.
template <class Tile>
DEVICE void load_tile(const TensorMap& map, const Tile& to, unsigned barrier, int outer, int depth, int half,
                      int image) {
  const int lines = first_line<Tile>(half);
  UNROLL
  for (int panel = 0; panel < Tile::kChunks / 8; ++panel) {
    const unsigned at = address_of(to, panel, lines);
    const int element = (Tile::kAlongDepth ? depth : outer) + panel * tma::kBoxElements;
    const int line = (Tile::kAlongDepth ? outer : depth) + lines;
    if (half < 0)
      tma::load(map, at, barrier, element, line, image, 0);
    else
      tma::load_for_both(map, at, barrier, element, line, image, 0);
  }
}

template <What kWhat, class Shape_>
struct Work {
  using Shape = Shape_;
  static constexpr bool kNchw = Traits<kWhat>::kNchw, kWeightGrad = Traits<kWhat>::kWeightGrad;
  static constexpr bool kTransposed = kNchw && !kWeightGrad, kGaps = false, kMayBeEmpty = false;
  struct Tile {
    int row, image;  // image: in NCHW, if rows are pixels, the image of the row
  };
  const TmaGemmArgs& p;
  int rank, column;

  DEVICE int steps_of(const Tile&, int steps) const { return steps; }
  DEVICE int columns() const { return p.columns; }
  DEVICE int partial_column(int box, int at) const { return box + at; }

  template <class Function>
  DEVICE void for_each_tile(int first, Function function) const {
    for (int next = first; next < p.row_tiles; next += p.row_blocks) {
      int tile = p.shared == TmaShared::kColumns ? next * 2 + rank : next;
      int image = 0;
      if constexpr (kTransposed) image = divide_with_rest(tile, p.by_image);
      function(Tile{tile * Shape::kRows, image});
    }
  }

  struct Copies {
    const Work& work;
    int row, image, depth;

    DEVICE void begin(int step) {
      depth = step;
      if constexpr (kNchw && kWeightGrad) image = divide_with_rest(depth, work.p.by_image);
      depth *= kTmaDepth;
    }
    DEVICE void a(const typename Shape::TileA& to, unsigned barrier) const {
      const int half = work.p.shared == TmaShared::kRows ? work.rank : -1;
      if constexpr (kNchw)
        load_tile(work.p.a, to, barrier, row, depth, half, image);
      else
        load_tile(work.p.a, to, barrier, row, depth, half);
    }
    DEVICE void b(const typename Shape::TileB& to, unsigned barrier) const {
      const int half = work.p.shared == TmaShared::kColumns ? work.rank : -1;
      if constexpr (kNchw && kWeightGrad)
        load_tile(work.p.b, to, barrier, work.column, depth, half, image);
      else
        load_tile(work.p.b, to, barrier, work.column, depth, half);
    }
    DEVICE void end() const {}
  };
  DEVICE Copies copies_of(const Tile& tile, int) const { return {*this, tile.row, tile.image, 0}; }

  // In NCHW rows are the pixels of an image, which run along lines.
  DEVICE void store(const Tile& tile, unsigned from, int row, int at) const {
    if constexpr (kTransposed)
      tma::store(p.result, from, row, at, tile.image, 0);
    else
      tma::store(p.result, from, at, row);
  }
};

template <What kWhat, class T, int kRows, int kColumns, int kStages, TmaConsumers kConsumers, class Program>
DEVICE void multiply(const TmaGemmArgs& p, const Program& program) {
  using Shape = TmaShape<T, kRows, kColumns, kStages, kConsumers, Traits<kWhat>::kLinesA, Traits<kWhat>::kLinesB>;
  multiply_tiles<Work<kWhat, Shape>>(p, program);
}

constexpr TmaConsumers cooperative = TmaConsumers::cooperative, pingpong = TmaConsumers::pingpong;
constexpr What forward = What::forward, input_grad = What::input_grad, weight_grad = What::weight_grad;
constexpr What forward_nchw = What::forward_nchw, input_grad_nchw = What::input_grad_nchw;
constexpr What weight_grad_nchw = What::weight_grad_nchw;

}  // namespace
}  // namespace reformer

// A kernel that runs a program. The program's text follows this file, and no other kernel is compiled.
#ifdef REFORMER_TEXT_FOLLOWS
#define REFORMER_WITH_PROGRAM(name, Program, what, T, rows, columns, stages, consumers)                              \
  KERNEL(reformer::threads(rows, columns, reformer::consumers, reformer::RunsProgram<reformer::Program>::kEpilogue)) \
  name(const __grid_constant__ reformer::WithProgram<reformer::TmaWithTensors<reformer::TmaGemmArgs>> args) {        \
    reformer::grid_dependency_launch();                                                                              \
    reformer::multiply<reformer::what, reformer::T, rows, columns, stages, reformer::consumers>(                     \
        args.conv, reformer::RunsProgram<reformer::Program>{args.program, args.conv.epilogue});                      \
  }
#else
#define X(what, T, rows, columns, stages, consumers)                                             \
  KERNEL(reformer::threads(rows, columns, reformer::consumers))                                  \
  tma_gemm_##what##_##T##_##rows##x##columns##_##stages##_##consumers(                           \
      const __grid_constant__ reformer::TmaGemmArgs args) {                                      \
    reformer::grid_dependency_launch();                                                          \
    reformer::multiply<reformer::what, reformer::T, rows, columns, stages, reformer::consumers>( \
        args, reformer::NoProgram{});                                                            \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "tma_gemm.inc"
#endif
#endif
#endif
