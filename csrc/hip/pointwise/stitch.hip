// Programs on a tensor: element-wise operations, and reductions over channels or everything, in one pass over memory.
//
// This file has the part that all programs share. It is followed by the text of a program: a structure Program, and the
// macros at the end of this file applied to it. programs/stitch_source.h, which generates the text, documents its
// members.
#include "../device/grid_dependency.h"
#include "../device/last_block.h"
#include "../programs/column_reductions.h"
#include "../programs/mapped.h"

namespace reformer {
namespace {

// Visits vectorized elements of a tensor in memory, line by line.
template <class Program, int kCount, bool kChannelsAlong>
struct Elements : VectorizedElements<Program, kCount, kChannelsAlong> {
  using Base = VectorizedElements<Program, kCount, kChannelsAlong>;
  using typename Base::Loaded;
  Reductions<Program, Base::kChannels, kStitchThreads> reductions;

  // Steps whose loads are in flight at once; programs with few loads need more steps.
  static constexpr int kUnroll = Program::kLinesAtOnce;
  // Runs steps 0 to `steps` - 1; at(step, line, column) sets the position of a step, and returns false beyond the last
  // one, where that of another step is loaded again: a condition would make each load wait for the previous one.
  template <class Place>
  DEVICE void run(const StitchArgs& p, int steps, Place at) {
    for (int step = 0; step < steps; step += kUnroll) {
      Loaded loaded[kUnroll];
      int line[kUnroll], column[kUnroll];
      bool exists[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        exists[i] = at(step + i, line[i], column[i]);
        this->load_with_acc(p, line[i], column[i], loaded[i]);
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i)
        if (exists[i]) compute(p, line[i], column[i], loaded[i]);
    }
  }

  DEVICE void compute(const StitchArgs& p, int line, int column, Loaded& loaded) {
    Program::template load_more<kCount>(p, line, column, loaded.values);
    typename Base::Stored stored;
    UNROLL
    for (int j = 0; j < kCount; ++j) {
      float reduced[kAtLeastOne<Program::kReductions>];
      Base::compute(p, loaded, j, nullptr, stored, reduced);
      reductions.add(kChannelsAlong ? j : 0, reduced);
    }
    Program::template store<0, kCount>(p, static_cast<long long>(line) * p.width + column, stored, line, column);
  }
};

// Adds up the parts of reduction i and of those after it, in a fixed order. kLoads: loads per thread in flight.
template <class Program, int kLoads, int i = 0, bool kMore = (i < Program::kReductions)>
struct Finish {
  static constexpr Kind kKind = Program::kind(i);
  static constexpr Over kOver = Program::over(i);
  using Rest = Finish<Program, kLoads, i + 1>;

  // Adds up the block's reduction, whose index is block_y().
  DEVICE static void run(const StitchArgs& p, float* shared) {
    if (block_y() != i) return Rest::run(p, shared);
    if constexpr (kOver == Over::all) {
      if (block_x() == 0 && p.block_parts > 1) of_all(p, shared);
    } else {
      const int log = kOver == Over::image ? p.log_planes : kLogChannels, first = block_x() << log;
      const int count = p.parts / parts(p) * p.channels;
      if (parts(p) > 1 && first < count) of_channels(p, shared, first, count, log);
    }
  }

  // Adds up all partial results in a single block, for the channels from `first` to `end`. Those of planes are complete
  // already.
  DEVICE static void run_alone(const StitchArgs& p, float* shared, int first, int end) {
    if constexpr (kOver == Over::all)
      if (p.block_parts > 1) of_all(p, shared);
    if (kOver == Over::images && parts(p) > 1) {
      int log = kLogChannels;
      while (1 << log < end - first && 1 << log < kStitchThreads) ++log;
      for (int some = first; some < end; some += 1 << log) of_channels(p, shared, some, end, log);
    }
    Rest::run_alone(p, shared, first, end);
  }

 private:
  static constexpr int kLogChannels = 3;
  static_assert(1 << kLogChannels == kStitchFinishChannels);

  // The number of parts of a channel or a plane; a result of one part is complete already.
  DEVICE static int parts(const StitchArgs& p) { return kOver == Over::image ? p.image_parts : p.parts; }

  // Combines the partial results at `first`, `first + step` ... before `end`.
  DEVICE static Known<kKind> sum(const StitchArgs& p, long long first, long long step, long long end) {
    constexpr int kUnroll = kOver == Over::image ? kStitchFinishParts : kLoads;
    const long long all = static_cast<long long>(p.parts) * p.channels;
    const float* const partial = p.partial + Program::first_number(i) * all;
    Accumulator<kKind> sums;
    for (long long at = first; at < end; at += kUnroll * step) {
      Known<kKind> some[kUnroll];
      UNROLL
      for (int j = 0; j < kUnroll; ++j) load_known(some[j], partial + (at + j * step < end ? at + j * step : at), all);
      UNROLL
      for (int j = 0; j < kUnroll; ++j) sums.add(at + j * step < end ? some[j] : Known<kKind>{});
    }
    return known(sums);
  }

  DEVICE static void of_all(const StitchArgs& p, float* shared) {
    Known<kKind> known = sum(p, thread_id(), kStitchThreads, p.block_parts);
    combine<kStitchThreads>(known, shared, kStitchThreads, 1, thread_id());
    if (thread_id() == 0) Program::template store_reduction<i>(p, 0, 1, known);
  }

  // Adds up 1 << log channels, or planes, from `first` on and before `end`: the block's threads divide their parts
  // among themselves.
  DEVICE static void of_channels(const StitchArgs& p, float* shared, int first, int end, int log) {
    const int across = 1 << log, shares = kStitchThreads >> log;
    const int x = thread_id() & (across - 1), y = thread_id() >> log;
    const int at = first + x, image = kOver == Over::image ? at / p.channels : 0;
    const long long line = p.channels, begin = image * parts(p) * line;
    Known<kKind> known =
        sum(p, begin + y * line + (at - image * p.channels), shares * line, at < end ? begin + parts(p) * line : 0);
    combine<kStitchThreads>(known, shared, shares, across, y);
    if (y == 0 && at < end) Program::template store_reduction<i>(p, at, p.parts / parts(p) * p.channels, known);
  }
};
template <class Program, int kLoads, int i>
struct Finish<Program, kLoads, i, false> {
  DEVICE static void run(const StitchArgs&, float*) {}
  DEVICE static void run_alone(const StitchArgs&, float*, int, int) {}
};

template <class Program>
DEVICE void stitch_finish(const StitchArgs& p) {
  SHARED float shared[kNumbers * kStitchThreads];
  grid_dependency_wait();
  Finish<Program, kStitchFinishLoads>::run(p, shared);
}

// NHWC: a thread keeps its columns, so that it reads values of channels once, and goes from line to line. The block has
// the columns from `first` on and before `end`, with 1 << log_across threads side by side. kImages: each thread's lines
// belong to one image. shared: kSharedOfReductions floats.
template <class Program, int kCount, bool kImages, bool kTail>
DEVICE void stitch_columns(const StitchArgs& p, float* shared, const BlockPlace& block, int log_across, int first,
                           int end) {
  const int across = 1 << log_across, log_lines = kStitchLogThreads - log_across, lines = 1 << log_lines;
  constexpr bool kShares = kImages && !kTail;  // the block with lines of other images
  const int of_image = kShares ? 1 << p.log_at_once : lines;
  const int x = thread_id() & (across - 1), of_block = thread_id() >> log_across, y = of_block & (of_image - 1);
  const int column = first + x * kCount;
  // Variables that the compiler knows to be 0 need no registers.
  const int images = kImages ? divide(block.part, p.by_image_parts) : 0, part = block.part - images * p.image_parts;
  const int image = kShares ? (images << (log_lines - p.log_at_once)) + (of_block >> p.log_at_once) : images;
  // Unsigned, so that nothing overflows.
  const unsigned begin = unsigned(image) * p.image_lines;
  const unsigned step = kTail ? p.image_parts * lines : p.step, own = part * (kTail ? lines : p.part_step) + y;
  const int steps = kTail ? divide((p.image_lines - 1) >> log_lines, p.by_image_parts) + 1 : p.steps;
  const bool wanted = column < end && (!kImages || begin < unsigned(p.lines));
  grid_dependency_wait();
  Elements<Program, kCount, true> elements;
  if (wanted) {
    elements.begin(p, column, image);
    if constexpr (Program::kStoresChannels)
      if (part == 0 && y == 0)
        for (int j = 0; j < kCount; ++j) Program::store_channel(p, column + j, image);
    const unsigned all = p.image_lines;
    elements.run(p, own < all ? steps : 0, [&](int i, int& line, int& at) {
      const bool exists = i < steps && own + i * step < all;
      line = int(begin + own + (exists ? i * step : 0));
      at = column;
      return exists;
    });
  }
  elements.reductions.store(shared, of_image, across, y, wanted, p, kShares ? image * p.image_parts + part : block.part,
                            block.group * p.parts + block.part, column);
}

// kTails: rows end within a thread's columns. The columns after the last whole groups are left to further blocks, whose
// threads have one column each.
template <class Program, int kCount, bool kImages, bool kTails>
DEVICE void stitch_nhwc(const StitchArgs& p) {
  SHARED float shared[kSharedOfReductions<kStitchThreads>];
  const BlockPlace block = block_place<Program>(p);
  const int whole = p.width / kCount * kCount, first = (block.group << p.log_across) * kCount;
  if (!kTails || first < whole)
    stitch_columns<Program, kCount, kImages, false>(p, shared, block, p.log_across, first, whole);
  else
    stitch_columns<Program, 1, kImages, true>(p, shared, block, kStitchLogTail, whole, p.width);
  if constexpr (Program::kReductions > 0)
    if (p.semaphores && is_last_block(p.semaphores + block.group, p.parts)) {
      const int begin = first < whole ? first : whole, last = begin + (kCount << p.log_across);
      const int end = begin < whole ? whole : p.width;
      Finish<Program, kStitchLastBlockLoads>::run_alone(p, shared, begin, last < end ? last : end);
    }
}

// NCHW: a thread keeps its line, and thus its channel, and goes along it.
template <class Program, int kCount>
DEVICE void stitch_nchw(const StitchArgs& p) {
  SHARED float shared[kSharedOfReductions<kStitchThreads>];
  const int across = 1 << p.log_across, lines = kStitchThreads >> p.log_across;
  const int x = thread_id() & (across - 1), y = thread_id() >> p.log_across;
  const BlockPlace block = Program::kReductions
                               ? BlockPlace{block_y(), block_x()}
                               : BlockPlace{p.image_parts - 1 - block_y(), p.line_groups - 1 - block_x()};
  const int line = block.group * lines + y;
  const bool wanted = line < p.lines;
  int channel = wanted ? line : 0;
  const int image = divide_with_rest(channel, p.by_channels);
  grid_dependency_wait();
  Elements<Program, kCount, false> elements;
  if (wanted) {
    elements.begin(p, channel, image);
    if constexpr (Program::kStoresChannels)
      if (block.part == 0 && x == 0) Program::store_channel(p, channel, image);
    const unsigned first = block.part * p.columns_each;
    const unsigned end = first + p.columns_each < unsigned(p.width) ? first + p.columns_each : p.width;
    const unsigned own = first + x * kCount, step = kCount << p.log_across;
    elements.run(p, own < end ? p.steps : 0, [&](int i, int& at, int& column) {
      const bool exists = own + i * step < end;
      at = line;
      column = int(own + (exists ? i * step : 0));
      return exists;
    });
  }
  elements.reductions.store(shared, across, 1, x, wanted, p, image * p.image_parts + block.part,
                            block.group * p.image_parts + block.part, channel);
}

}  // namespace
}  // namespace reformer

// blocks: that a multiprocessor has to run at once, or 0.
#define REFORMER_STITCH(name, Program, blocks, layout, ...)                         \
  KERNEL_OCCUPANCY(reformer::kStitchThreads, blocks) name(reformer::StitchArgs p) { \
    reformer::grid_dependency_launch();                                             \
    reformer::stitch_##layout<reformer::Program, __VA_ARGS__>(p);                   \
  }
#define REFORMER_STITCH_FINISH(name, Program)                     \
  KERNEL(reformer::kStitchThreads) name(reformer::StitchArgs p) { \
    reformer::grid_dependency_launch();                           \
    reformer::stitch_finish<reformer::Program>(p);                \
  }
