// Convolutions with filters of any size in NHWC as matrix products with Hopper's TMA and wgmma; see tma_tiles.h. The
// copy engine reads windows (its im2col mode): a thread passes the beginning of a tile's first window and the tap, and
// computes no other addresses.
#define REFORMER_ON_SUMS  // device/functions.h
#include "tma_tiles.h"
#include "tma_windows.h"

#if defined(REFORMER_TMA)
namespace reformer {
namespace {

enum class What { forward, input_grad, weight_grad };

template <What>
struct ArgsOf {
  using Type = TmaWindowsArgs;
};
template <>
struct ArgsOf<What::input_grad> {
  using Type = TmaClassesArgs;
};
template <What kWhat>
using Args = typename ArgsOf<kWhat>::Type;

// A window of a class: its indices along each axis.
struct Window {
  int w, h, n;
};
DEVICE Window window_of(const TmaClass& of, int number) {
  Window at{number, 0, 0};
  at.n = divide_with_rest(at.w, of.by_image_windows);
  at.h = divide_with_rest(at.w, of.by_line_windows);
  return at;
}
// Where the window begins in the source.
DEVICE Window begin_of(const TmaWindowsArgs& p, const TmaClass& of, int number) {
  const Window at = window_of(of, number);
  return {p.first_w + at.w * p.window_step_w, p.first_h + at.h * p.window_step_h, at.n};
}

// 64 channels of a tap: a step of the depth, or a panel of columns.
struct TapChannels {
  int channel, h, w;
};
DEVICE TapChannels tap_channels_of(const TmaWindowsArgs& p, const TmaClass& of, int number) {
  TapChannels at{number, 0, 0};
  at.w = divide_with_rest(at.channel, p.by_channels);
  at.h = divide_with_rest(at.w, of.by_width);
  at.channel *= 64;
  return at;
}

// Proceeds to the next 64 channels.
DEVICE void advance(const TmaWindowsArgs& p, const TmaClass& of, TapChannels& at) {
  at.channel += 64;
  if (at.channel < int(p.by_channels.divisor) * 64) return;
  at.channel = 0;
  if (++at.w == of.w.count) at.w = 0, ++at.h;
}

DEVICE void load_windows(const TensorMap& map, unsigned to, unsigned barrier, const Window& begin,
                         const TapChannels& at, const TmaClass& of, int half) {
  const int offset_w = of.w.offset + at.w * of.w.offset_step, offset_h = of.h.offset + at.h * of.h.offset_step;
  if (half < 0)
    tma::load_windows(map, to, barrier, at.channel, begin.w, begin.h, begin.n, offset_w, offset_h);
  else
    tma::load_windows_for_both(map, to, barrier, at.channel, begin.w, begin.h, begin.n, offset_w, offset_h);
}

// The state of the copying thread for a tile of forward or input_grad: all steps begin in the same window.
template <class Work>
struct CopiesOfWindows {
  using Shape = typename Work::Shape;
  const Work& work;
  const TensorMap& source;
  const TmaClass& of;
  Window first;
  TapChannels at;

  DEVICE void begin(int) const {}
  DEVICE void a(const typename Shape::TileA& to, unsigned barrier) const {
    const int half = work.half_of(TmaShared::kRows), line = first_line<typename Shape::TileA>(half);
    load_windows(source, address_of(to, 0, line), barrier, first, at, of, half);
  }

  DEVICE void b(const typename Shape::TileB& to, unsigned barrier) const {
    using Tile = typename Shape::TileB;
    const int half = work.half_of(TmaShared::kColumns), lines = first_line<Tile>(half);
    const int tap_w = of.w.first + at.w * of.w.step, tap_h = of.h.first + at.h * of.h.step;
    UNROLL
    for (int panel = 0; panel < Tile::kChunks / 8; ++panel) {
      const unsigned address = address_of(to, panel, lines);
      const int element = (Tile::kAlongDepth ? at.channel : work.column) + panel * tma::kBoxElements;
      const int line = (Tile::kAlongDepth ? work.column : at.channel) + lines;
      if (half < 0)
        tma::load(work.p.b, address, barrier, element, tap_w, tap_h, line);
      else
        tma::load_for_both(work.p.b, address, barrier, element, tap_w, tap_h, line);
    }
  }
  DEVICE void end() { advance(work.p, of, at); }
};

// For weight_grad: all steps have the same taps.
template <class Work>
struct CopiesOfPanels {
  using Shape = typename Work::Shape;
  const Work& work;
  int row, pixel;

  DEVICE void begin(int step) { pixel = step * kTmaDepth; }

  DEVICE void a(const typename Shape::TileA& to, unsigned barrier) const {
    load_tile(work.p.a, to, barrier, row, pixel, work.half_of(TmaShared::kRows));
  }

  DEVICE void b(const typename Shape::TileB& to, unsigned barrier) const {
    const int half = work.half_of(TmaShared::kColumns), lines = first_line<typename Shape::TileB>(half);
    const TmaClass& of = work.p.classes[0];
    const Window begin = begin_of(work.p, of, pixel + lines);
    TapChannels at = tap_channels_of(work.p, of, work.column / 64);
    UNROLL
    for (int panel = 0; panel < Shape::kColumns / 64; ++panel) {
      load_windows(work.p.b, address_of(to, panel, lines), barrier, begin, at, of, half);
      // Panels past the end load the last panel again; their sums are not stored.
      if (work.column / 64 + panel + 1 < work.p.panels) advance(work.p, of, at);
    }
  }
  DEVICE void end() const {}
};

template <What kWhat, class Shape_>
struct Work {
  using Shape = Shape_;
  static constexpr bool kWeightGrad = kWhat == What::weight_grad, kInputGrad = kWhat == What::input_grad;
  static constexpr bool kTransposed = false, kGaps = kWeightGrad, kMayBeEmpty = kInputGrad;
  struct Tile {
    int row, class_number;
  };
  const Args<kWhat>& p;
  int rank, column;

  DEVICE int half_of(TmaShared operand) const { return p.shared == operand ? rank : -1; }
  DEVICE int columns() const { return kWeightGrad ? p.panels * 64 : p.columns; }
  DEVICE int steps_of(const Tile& tile, int steps) const {
    return kInputGrad && p.scattered ? p.classes[tile.class_number].steps : steps;
  }

  template <class Function>
  DEVICE void for_each_tile(int first, Function function) const {
    for (int next = first; next < p.row_tiles; next += p.row_blocks) {
      Tile tile{next, 0};
      if constexpr (kInputGrad)
        while (tile.row >= p.classes[tile.class_number].tiles) tile.row -= p.classes[tile.class_number++].tiles;
      if (p.shared == TmaShared::kColumns) tile.row = tile.row * 2 + rank;
      tile.row *= Shape::kRows;
      function(tile);
    }
  }

  DEVICE auto copies_of(const Tile& tile, int first_step) const {
    if constexpr (kWeightGrad) {
      return CopiesOfPanels<Work>{*this, tile.row, 0};
    } else {
      const int lines = first_line<typename Shape::TileA>(half_of(TmaShared::kRows));
      const TmaClass& of = p.classes[tile.class_number];
      return CopiesOfWindows<Work>{*this, source_of(tile), of, begin_of(p, of, tile.row + lines),
                                   tap_channels_of(p, of, first_step)};
    }
  }

  DEVICE const TensorMap& source_of(const Tile& tile) const {
    if constexpr (kInputGrad)
      if (tile.class_number) return p.other_sources[tile.class_number - 1];
    return p.a;
  }

  DEVICE void store([[maybe_unused]] const Tile& tile, unsigned from, int row, int at) const {
    if constexpr (kWeightGrad) {
      const TapChannels to = tap_channels_of(p, p.classes[0], at / 64);
      tma::store(p.result, from, to.channel, to.w, to.h, row);
    } else {
      if constexpr (kInputGrad) {
        if (p.scattered) {
          const Window to = window_of(p.classes[tile.class_number], row);
          const TensorMap& result = tile.class_number ? p.other_results[tile.class_number - 1] : p.result;
          return tma::store_windows(result, from, at, to.w, to.h, to.n);
        }
      }
      tma::store(p.result, from, at, row);
    }
  }

  // Partial sums have no gaps after a tap's channels.
  DEVICE int partial_column(int box, int at) const {
    if constexpr (!kWeightGrad) return box + at;
    int panel = box / 64;
    if (panel >= p.panels) return p.columns;
    const int tap = divide_with_rest(panel, p.by_channels);
    at += panel * 64;
    return at < p.channels ? tap * p.channels + at : p.columns;
  }
};

template <What kWhat, class T, int kRows, int kColumns, int kStages, TmaConsumers kConsumers, class Program>
DEVICE void multiply(const Args<kWhat>& p, const Program& program) {
  constexpr Lines kLinesA = kWhat == What::weight_grad ? Lines::kAlongOuter : Lines::kAlongDepth;
  constexpr Lines kLinesB = kWhat == What::forward ? Lines::kAlongDepth : Lines::kAlongOuter;
  multiply_tiles<Work<kWhat, TmaShape<T, kRows, kColumns, kStages, kConsumers, kLinesA, kLinesB>>>(p, program);
}

constexpr TmaConsumers cooperative = TmaConsumers::cooperative;
constexpr What forward = What::forward, input_grad = What::input_grad, weight_grad = What::weight_grad;

}  // namespace
}  // namespace reformer

// A kernel that runs a program. The program's text follows this file, and no other kernel is compiled.
#ifdef REFORMER_TEXT_FOLLOWS
#define REFORMER_WITH_PROGRAM(name, Program, what, T, rows, columns, stages, consumers)                              \
  KERNEL(reformer::threads(rows, columns, reformer::consumers, reformer::RunsProgram<reformer::Program>::kEpilogue)) \
  name(const __grid_constant__ reformer::WithProgram<reformer::TmaWithTensors<reformer::TmaWindowsArgs>> args) {     \
    reformer::grid_dependency_launch();                                                                              \
    reformer::multiply<reformer::what, reformer::T, rows, columns, stages, reformer::consumers>(                     \
        args.conv, reformer::RunsProgram<reformer::Program>{args.program, args.conv.epilogue});                      \
  }
#else
#define X(what, T, rows, columns, stages, consumers)                                             \
  KERNEL(reformer::threads(rows, columns, reformer::consumers))                                  \
  tma_windows_##what##_##T##_##rows##x##columns##_##stages##_##consumers(                        \
      const __grid_constant__ reformer::Args<reformer::What::what> args) {                       \
    reformer::grid_dependency_launch();                                                          \
    reformer::multiply<reformer::what, reformer::T, rows, columns, stages, reformer::consumers>( \
        args, reformer::NoProgram{});                                                            \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "tma_windows.inc"
#endif
#endif
#endif
