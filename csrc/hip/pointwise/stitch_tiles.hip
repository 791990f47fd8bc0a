// Programs that read or write tensors in which lines, not columns, are adjacent: images in contiguous (NCHW) order
// together with images in channels_last. A few columns may be adjacent, too, as those that a pixel shuffle puts side by
// side.
//
// A thread has blocks of kLines lines and kCount columns in registers. It reads a transposed tensor column by column,
// by accesses of kLines elements, and others line by line. Transposing costs nothing there: a number is widened from
// whichever register it is in, and stored words are narrowed from two numbers of a line or of a column. 8 threads of a
// warp are side by side and 4 or 8 one below the other, so that both kinds of accesses are to whole sectors.
//
// The text of a program follows this file, as in stitch.hip.
#include "../device/grid_dependency.h"
#include "../programs/column_reductions.h"
#include "../programs/mapped.h"

namespace reformer {
namespace {

template <class Program, int kLines, int kCount>
struct TileElements : VectorizedElements<Program, kCount, true> {
  using Base = VectorizedElements<Program, kCount, true>;
  Reductions<Program, kCount, kStitchThreads> reductions;

  // Computes the block that begins at this line and column.
  DEVICE void run(const StitchArgs& p, int line, int column) {
    constexpr int kSome = kLines < 2 ? kLines : 2;
    typename Program::template Tile<kLines, kCount> tile;
    typename Program::template Transposed<kLines, kCount> transposed;
    tile.read(p, line, column);
    UNROLL
    for (int i = 0; i < kLines; i += kSome) {
      typename Base::Stored stored[kSome];
      UNROLL
      for (int k = 0; k < kSome; ++k) {
        const int at = line + i + k;
        typename Base::Loaded loaded;
        tile.widen(p, i + k, at, column, loaded.values);
        UNROLL
        for (int j = 0; j < kCount; ++j) {
          float reduced[kAtLeastOne<Program::kReductions>];
          Base::compute(p, loaded, j, nullptr, stored[k], reduced);
          reductions.add(j, reduced);
        }
        Program::template store<0, kCount>(p, static_cast<long long>(at) * p.width + column, stored[k], at, column);
      }
      transposed.put(i, stored);
    }
    transposed.write(p, line, column);
  }
};

// As stitch_nhwc, with kLines lines in place of one.
template <class Program, int kLines, int kCount>
DEVICE void stitch_tiles(const StitchArgs& p) {
  SHARED float shared[kSharedOfReductions<kStitchThreads>];
  const int across = 1 << p.log_across, down = kStitchThreads >> p.log_across;
  const int x = thread_id() & (across - 1), y = thread_id() >> p.log_across;
  const BlockPlace block = block_place<Program>(p);
  const int column = ((block.group << p.log_across) + x) * kCount;
  const bool wanted = column < p.width;
  const int image = divide(block.part, p.by_image_parts), part = block.part - image * p.image_parts;
  const int begin = image * p.image_lines;
  grid_dependency_wait();
  TileElements<Program, kLines, kCount> elements;
  if (wanted) {
    elements.begin(p, column, image);
    if constexpr (Program::kStoresChannels)
      if (part == 0 && y == 0)
        for (int j = 0; j < kCount; ++j) Program::store_channel(p, column + j, image);
    for (int line = (part * down + y) * kLines; line < p.image_lines; line += p.image_parts * down * kLines)
      elements.run(p, begin + line, column);
  }
  elements.reductions.store(shared, down, across, y, wanted, p, block.part, block.group * p.parts + block.part, column);
}

}  // namespace
}  // namespace reformer

#define REFORMER_STITCH_TILES(name, Program, lines, count)        \
  KERNEL(reformer::kStitchThreads) name(reformer::StitchArgs p) { \
    reformer::grid_dependency_launch();                           \
    reformer::stitch_tiles<reformer::Program, lines, count>(p);   \
  }
