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
  // again: a condition would have each load wait for the one before.
  template <class Place>
  DEVICE void run(const StitchArgs& p, int steps, Place at) {
    for (int step = 0; step < steps; step += kUnroll) {
      Loaded loaded[kUnroll];
      int line[kUnroll], column[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        at(step + i < steps ? step + i : steps - 1, line[i], column[i]);
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
template <class Program, int kCount>
DEVICE void stitch_nhwc(const StitchArgs& p) {
  SHARED float shared[kNumbers * kStitchThreads];
  const int across = 1 << p.log_across, lines = kStitchThreads >> p.log_across;
  const int x = thread_id() & (across - 1), y = thread_id() >> p.log_across;
  const int column = ((block_x() << p.log_across) + x) * kCount;
  const bool wanted = column < p.width;
  grid_dependency_wait();
  Elements<Program, kCount, true> elements;
  if (wanted) {
    elements.begin(p, column);
    if constexpr (Program::kStoresChannels)
      if (block_y() == 0 && y == 0)
        for (int j = 0; j < kCount; ++j) Program::store_channel(p, column + j);
    const int first = block_y() * lines + y, step = p.parts * lines;
    elements.run(p, first < p.lines ? (p.lines - 1 - first) / step + 1 : 0, [&](int i, int& line, int& at) {
      line = first + i * step;
      at = column;
    });
  }
  elements.reductions.store(shared, lines, across, y, wanted, p, block_y(), column);
}

// NCHW: a thread's line, and so its channel, stays; it goes along it.
template <class Program, int kCount>
DEVICE void stitch_nchw(const StitchArgs& p) {
  SHARED float shared[kNumbers * kStitchThreads];
  const int across = 1 << p.log_across, lines = kStitchThreads >> p.log_across;
  const int x = thread_id() & (across - 1), y = thread_id() >> p.log_across;
  const int line = block_y() * lines + y;
  const bool wanted = line < p.lines;
  int channel = wanted ? line : 0;
  const int image = divide_with_rest(channel, p.by_channels);
  grid_dependency_wait();
  Elements<Program, kCount, false> elements;
  if (wanted) {
    elements.begin(p, channel);
    if constexpr (Program::kStoresChannels)
      if (block_x() == 0 && x == 0 && image == 0) Program::store_channel(p, channel);
    const int first = block_x() * p.columns_each;
    const int end = first + p.columns_each < p.width ? first + p.columns_each : p.width;
    const int own = first + x * kCount, step = kCount << p.log_across;
    elements.run(p, own < end ? (end - 1 - own) / step + 1 : 0, [&](int i, int& at, int& column) {
      at = line;
      column = own + i * step;
    });
  }
  const int blocks = (p.width + p.columns_each - 1) / p.columns_each;
  elements.reductions.store(shared, across, 1, x, wanted, p, image * blocks + block_x(), channel);
}

// Adds up the parts of reduction i and those after it, always in the same order.
template <class Program, int i = 0, bool kMore = (i < Program::kReductions)>
struct Finish {
  static constexpr Kind kKind = Program::kind(i);
  static constexpr int kUnroll = 8;  // loads in flight

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
    constexpr int kShares = kStitchThreads / kStitchFinishChannels;
    const long long all = static_cast<long long>(p.parts) * p.channels;
    if constexpr (Program::of_all(i)) {
      if (block_x() == 0) {  // for the whole block
        Known<kKind> known = sum(p, thread_id(), kStitchThreads, all);
        combine<kStitchThreads>(known, shared, kStitchThreads, 1, thread_id());
        if (thread_id() == 0) Program::template store_reduction<i>(p, 0, 1, known);
      }
    } else {
      const int x = thread_id() % kStitchFinishChannels, y = thread_id() / kStitchFinishChannels;
      const int channel = block_x() * kStitchFinishChannels + x;
      const long long line = p.channels, first = y * line + channel;
      Known<kKind> known = sum(p, first, kShares * line, channel < p.channels ? all : 0);
      combine<kStitchThreads>(known, shared, kShares, kStitchFinishChannels, y);
      if (y == 0 && channel < p.channels) Program::template store_reduction<i>(p, channel, p.channels, known);
    }
    Finish<Program, i + 1>::run(p, shared);
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

#define REFORMER_STITCH(name, Program, layout, count)             \
  KERNEL(reformer::kStitchThreads) name(reformer::StitchArgs p) { \
    reformer::grid_dependency_launch();                           \
    reformer::stitch_##layout<reformer::Program, count>(p);       \
  }
#define REFORMER_STITCH_FINISH(name, Program)                     \
  KERNEL(reformer::kStitchThreads) name(reformer::StitchArgs p) { \
    reformer::grid_dependency_launch();                           \
    reformer::stitch_finish<reformer::Program>(p);                \
  }
