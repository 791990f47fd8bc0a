// Programs over a tensor: element-wise operations, and reductions over channels or all, in one pass over memory.
//
// This file has what all programs share. The text of a program follows it: a structure Program, and the macros at the
// end of this file applied to it. What it holds is said in programs/stitch_source.h, which writes it.
#include "../device/grid_dependency.h"
#include "column_reductions.h"

namespace reformer {
namespace {

// Vectorized elements of a tensor in memory, line by line.
template <class Program, int kCount, bool kChannelsAlong>
struct Elements : VectorizedElements<Program, kCount, kChannelsAlong> {
  using Base = VectorizedElements<Program, kCount, kChannelsAlong>;
  using typename Base::Loaded;
  Reductions<Program, Base::kChannels, kStitchThreads> reductions;

  // So many steps' loads are in flight at once; programs with few loads want more steps.
  static constexpr int kUnroll = Program::kLoaded > 1 ? 2 : 4;
  // Steps 0 to `steps` - 1, of which at(step, line, column) says where they are. Beyond the last one it is loaded
  // again: a condition would have each load wait for the one before. What reduces nothing goes backwards: it mostly
  // follows a kernel that went forwards over the same tensors, whose end is still in the second-level cache.
  template <class Place>
  DEVICE void run(const StitchArgs& p, int steps, Place at) {
    for (int step = 0; step < steps; step += kUnroll) {
      Loaded loaded[kUnroll];
      int line[kUnroll], column[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int one = step + i < steps ? step + i : steps - 1;
        at(Program::kReductions ? one : steps - 1 - one, line[i], column[i]);
        this->load_with_acc(p, line[i], column[i], loaded[i]);
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i)
        if (step + i < steps) compute(p, line[i], column[i], loaded[i]);
    }
  }

  DEVICE void compute(const StitchArgs& p, int line, int column, const Loaded& loaded) {
    typename Base::Stored stored;
    UNROLL
    for (int j = 0; j < kCount; ++j) {
      float reduced[kAtLeastOne<Program::kReductions>];
      Base::compute(p, loaded, j, nullptr, stored, reduced);
      reductions.add(kChannelsAlong ? j : 0, reduced);
    }
    Program::template store<true, kCount>(p, static_cast<long long>(line) * p.width + column, stored, line, column);
  }
};

// NHWC: a thread's columns stay, so it reads what belongs to channels once; it goes from line to line.
// kImages: a block's lines are those of one image.
template <class Program, int kCount, bool kImages>
DEVICE void stitch_nhwc(const StitchArgs& p) {
  SHARED float shared[kSharedOfReductions<kStitchThreads>];
  const int across = 1 << p.log_across, lines = kStitchThreads >> p.log_across;
  const int x = thread_id() & (across - 1), y = thread_id() >> p.log_across;
  const int column = ((block_y() << p.log_across) + x) * kCount;
  const bool wanted = column < p.width;
  // Numbers that are 0 where the compiler can see it need no registers.
  const int image = kImages ? block_x() / p.image_parts : 0, part = block_x() - image * p.image_parts;
  const int begin = image * p.image_lines;
  grid_dependency_wait();
  Elements<Program, kCount, true> elements;
  if (wanted) {
    elements.begin(p, column, image);
    if constexpr (Program::kStoresChannels)
      if (part == 0 && y == 0)
        for (int j = 0; j < kCount; ++j) Program::store_channel(p, column + j, image);
    const int first = part * lines + y, step = p.image_parts * lines;
    elements.run(p, first < p.image_lines ? (p.image_lines - 1 - first) / step + 1 : 0, [&](int i, int& line, int& at) {
      line = begin + first + i * step;
      at = column;
    });
  }
  elements.reductions.store(shared, lines, across, y, wanted, p, block_x(), column);
}

// NCHW: a thread's line, and so its channel, stays; it goes along it.
template <class Program, int kCount>
DEVICE void stitch_nchw(const StitchArgs& p) {
  SHARED float shared[kSharedOfReductions<kStitchThreads>];
  const int across = 1 << p.log_across, lines = kStitchThreads >> p.log_across;
  const int x = thread_id() & (across - 1), y = thread_id() >> p.log_across;
  const int line = block_x() * lines + y;
  const bool wanted = line < p.lines;
  int channel = wanted ? line : 0;
  const int image = divide_with_rest(channel, p.by_channels);
  grid_dependency_wait();
  Elements<Program, kCount, false> elements;
  if (wanted) {
    elements.begin(p, channel, image);
    if constexpr (Program::kStoresChannels)
      if (block_y() == 0 && x == 0) Program::store_channel(p, channel, image);
    const int first = block_y() * p.columns_each;
    const int end = first + p.columns_each < p.width ? first + p.columns_each : p.width;
    const int own = first + x * kCount, step = kCount << p.log_across;
    elements.run(p, own < end ? (end - 1 - own) / step + 1 : 0, [&](int i, int& at, int& column) {
      at = line;
      column = own + i * step;
    });
  }
  elements.reductions.store(shared, across, 1, x, wanted, p, image * p.image_parts + block_y(), channel);
}

// Adds up the parts of reduction i or of one after it, whichever is the block's (block_y()), always in the same order.
template <class Program, int i = 0, bool kMore = (i < Program::kReductions)>
struct Finish {
  static constexpr Kind kKind = Program::kind(i);
  // Loads in flight: those of the threads that share a channel's parts are all of 512, and take the time of one. More
  // would spill on AMD's GPUs.
  static constexpr int kUnroll = 16;

  // Combines the partial results at `first`, `first + step` and so on before `end`.
  DEVICE static Known<kKind> sum(const StitchArgs& p, long long first, long long step, long long end) {
    const long long all = static_cast<long long>(p.parts) * p.channels;
    const float* const partial = p.partial + Program::first_number(i) * all;
    Known<kKind> known;
    for (long long at = first; at < end; at += kUnroll * step) {
      Known<kKind> some[kUnroll];
      UNROLL
      for (int j = 0; j < kUnroll; ++j) load_known(some[j], partial + (at + j * step < end ? at + j * step : at), all);
      UNROLL
      for (int j = 0; j < kUnroll; ++j) known.add(at + j * step < end ? some[j] : Known<kKind>{});
    }
    return known;
  }

  DEVICE static void run(const StitchArgs& p, float* shared) {
    if (block_y() != i) return Finish<Program, i + 1>::run(p, shared);
    constexpr int kShares = kStitchThreads / kStitchFinishChannels;
    constexpr Over kOver = Program::over(i);
    if constexpr (kOver == Over::all) {
      if (block_x() == 0) {  // for the whole block
        Known<kKind> known = sum(p, thread_id(), kStitchThreads, static_cast<long long>(p.parts) * p.channels);
        combine<kStitchThreads>(known, shared, kStitchThreads, 1, thread_id());
        if (thread_id() == 0) Program::template store_reduction<i>(p, 0, 1, known);
      }
    } else {
      const int x = thread_id() % kStitchFinishChannels, y = thread_id() / kStitchFinishChannels;
      const int at = block_x() * kStitchFinishChannels + x, image = kOver == Over::image ? at / p.channels : 0;
      const int parts = kOver == Over::image ? p.image_parts : p.parts;
      const int count = p.parts / parts * p.channels;
      const long long line = p.channels, begin = image * parts * line, end = at < count ? begin + parts * line : 0;
      Known<kKind> known = sum(p, begin + y * line + (at - image * p.channels), kShares * line, end);
      combine<kStitchThreads>(known, shared, kShares, kStitchFinishChannels, y);
      if (y == 0 && at < count) Program::template store_reduction<i>(p, at, count, known);
    }
  }
};
template <class Program, int i>
struct Finish<Program, i, false> {
  DEVICE static void run(const StitchArgs&, float*) {}
};

template <class Program>
DEVICE void stitch_finish(const StitchArgs& p) {
  SHARED float shared[kNumbers * kStitchThreads];
  grid_dependency_wait();
  Finish<Program>::run(p, shared);
}

}  // namespace
}  // namespace reformer

#define REFORMER_STITCH(name, Program, layout, ...)               \
  KERNEL(reformer::kStitchThreads) name(reformer::StitchArgs p) { \
    reformer::grid_dependency_launch();                           \
    reformer::stitch_##layout<reformer::Program, __VA_ARGS__>(p); \
  }
#define REFORMER_STITCH_FINISH(name, Program)                     \
  KERNEL(reformer::kStitchThreads) name(reformer::StitchArgs p) { \
    reformer::grid_dependency_launch();                           \
    reformer::stitch_finish<reformer::Program>(p);                \
  }
