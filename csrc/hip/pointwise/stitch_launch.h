// Launch configurations of the stitch kernels for a result: pure functions, independent of a GPU, for the operators and
// tests.
#pragma once

#include <algorithm>
#include <cmath>

#include "hip/programs/stitch_finish.h"
#include "stitch_rows_launch.h"

namespace reformer {

namespace stitch_launch {

constexpr int kMostResults = 64;  // of a thread at once, in registers
constexpr int kLeastGroups = 8;   // groups per thread, if rows end within the last of them
constexpr int kLinesAlone = 8;    // of a thread: one block adds up as many without partial results
constexpr int kFewThreads = 64;   // of a multiprocessor: fewer leave most of its time to single threads
// A multiprocessor with so many threads is busy, though each of them waits for its loads and adds up but a few lines.
constexpr int kEnoughThreads = 1024;

// Numbers of reductions that leave partial results: reductions of planes or channels with one part are complete.
struct PartialReductions {
  size_t of_channels, of_planes, of_all;
  size_t count() const { return of_channels + of_planes + of_all; }
};
inline PartialReductions partial_reductions(const StitchArgs& a, const StitchNeeds& needs) {
  return {a.parts == 1 ? 0 : needs.reductions - needs.of_planes - needs.of_all,
          a.image_parts == 1 ? 0 : needs.of_planes, a.block_parts == 1 ? 0 : needs.of_all};
}

// True if it takes no longer that the last block of each group of columns adds up their partial results than that
// another kernel does, which takes about 4 us, of which 2.5 are its launch. A block waits for its own stores and for
// the counter, and then for its loads, at about 100 GB/s.
inline bool last_block_adds_up(const StitchConfig& config, const StitchNeeds& needs) {
  constexpr double kFinishUs = 4, kArrivalUs = 1.2, kLoadsUs = 0.7, kBytesOfUs = 1e5;
  const PartialReductions left = partial_reductions(config.args, needs);
  const unsigned groups = config.args.by_groups.divisor;
  if (left.of_planes || (left.of_all && groups > 1) || groups > kStitchMostSemaphores) return false;
  const double numbers =
      double(config.args.parts) * std::min(config.args.width, config.count << config.args.log_across);
  const double loads = std::ceil(numbers / (kStitchThreads * kStitchLastBlockLoads)) * double(left.count());
  return kArrivalUs + kLoadsUs * loads + 4 * needs.numbers * numbers / kBytesOfUs <= kFinishUs;
}

// Logarithm of the number of threads of a block that share a line: the greatest one, up to `most`, for which threads
// are idle at most 2% more often than for any other. With fewer than 1 << fewest, less than a whole
// cache line would be read at once.
inline int log_across(int groups, int lines, int most, int fewest = 3) {
  const auto padded = [](int count, int to) { return double(ceil_div(count, to)) * to / count; };
  int best = 0;
  double least = 1e9;
  for (int log = most; log >= fewest; --log) {
    const double idle = padded(groups, 1 << log) * padded(lines, kStitchThreads >> log);
    if (idle < 0.98 * least) best = log, least = idle;
  }
  while (best > 0 && 1 << (best - 1) >= groups) --best;
  return best;
}

// Blocks for each part of the lines of each image, or of as many images as a block computes at once, and each of
// `groups` of columns.
inline void launch_groups(StitchConfig& config, const StitchNeeds& needs, int images, int groups, int at_once = 1) {
  StitchArgs& a = config.args;
  a.parts = images * a.image_parts;
  a.by_image_parts = make_divider(a.image_parts);
  a.by_groups = make_divider(groups);
  a.block_parts = a.parts * groups;
  // See block_place().
  config.launch.blocks_x = uint32_t(needs.reductions ? ceil_div(images, at_once) * a.image_parts : a.block_parts);
  config.launch.blocks_y = uint32_t(needs.reductions ? groups : 1);
  config.launch.threads = kStitchThreads;
}

// Blocks that all run at once, `most` of an image at most, with `lines` lines side by side: each thread has lines of
// the whole image. A few blocks more would take twice as long. At least two lines of a thread are in flight at once. So
// few lines that one block soon has them all need no partial results.
inline void spread_lines(StitchArgs& a, const StitchNeeds& needs, int lines, int most, bool of_all) {
  const bool is_short = needs.reductions && a.image_lines <= lines * kLinesAlone;
  a.image_parts = is_short ? 1 : std::clamp(ceil_div(a.image_lines, lines * 2), 1, most);
  // Memory that a block reads again after a period is in its first-level cache if all its lines have the same phase.
  const int parts = of_all && needs.period % lines == 0 ? needs.period / lines : 0;
  const int more = parts ? a.image_parts % parts : 0;
  if (8 * more <= a.image_parts) a.image_parts -= more;
  a.part_step = lines, a.step = a.image_parts * lines, a.steps = ceil_div(a.image_lines, a.step);
}

// Number of images of which a block has lines at once. Where it has all lines of one of many images, of which only
// planes are reduced, it has as many images as leave the GPU enough threads: a thread then adds up more lines, and
// fewer threads are idle or wait for others' sums.
inline int share_block(StitchConfig& config, const StitchNeeds& needs, int images, int groups, int multiprocessors) {
  constexpr int kCacheLine = 64;  // elements
  StitchArgs& a = config.args;
  const int log_lines = kStitchLogThreads - a.log_across;
  a.log_at_once = log_lines;
  if (!needs.reductions || needs.of_planes != needs.reductions || a.image_parts > 1 || config.tails) return 1;
  const auto threads = [&] { return int64_t{images} * groups << a.log_at_once; };
  const auto elements = [&] { return config.count << (a.log_across + a.log_at_once); };
  while (a.log_at_once && elements() > kCacheLine && threads() >= int64_t{2} * multiprocessors * kEnoughThreads)
    --a.log_at_once;
  a.step = a.part_step = 1 << a.log_at_once;
  a.steps = ceil_div(a.image_lines, a.step);
  return 1 << (log_lines - a.log_at_once);
}

// Groups of columns of a thread, in a program without reductions: those whose loads are in flight at once, and as many
// again where it computes values of channels first; fewer if not all multiprocessors would have a block.
inline int groups_of_thread(int64_t groups, const StitchNeeds& needs, int multiprocessors) {
  const int most = needs.lines_at_once * (needs.channels ? 2 : 1);
  return int(std::clamp<int64_t>(groups / (multiprocessors * kStitchThreads), 1, most));
}

// As many blocks, one after another, as there are lines for: each thread has a few adjacent ones. While some blocks
// wait for loads, or compute, others' stores fill the time, and as many run as registers allow.
inline void join_lines(StitchArgs& a, int lines, int of_thread) {
  a.steps = of_thread, a.step = lines, a.part_step = of_thread * lines;
  a.image_parts = ceil_div(a.image_lines, a.part_step);
}

// Blocks of a multiprocessor that can run at once, of a program whose threads add up columns line by line. The compiler
// keeps to the number of registers where they are more than kFewBlocks: in kernels whose values, as estimated here,
// took at most kFewValues and kManyValues, it needed 40 and 64 of them.
constexpr int kFewBlocks = 3;
inline int blocks_at_once(const StitchConfig& config, const StitchNeeds& needs) {
  constexpr int kFewValues = 32, kManyValues = 62, kOfDraws = 40;
  const int of_columns = (needs.added + needs.channels) * config.count + needs.stored * config.count / 2;
  const int of_loads = ceil_div(needs.lines_at_once * needs.bytes * config.count, 4);
  const int values = of_columns + of_loads + needs.steps + kOfDraws * needs.draws;
  return values <= kFewValues ? 6 : values <= kManyValues ? 4 : kFewBlocks;
}

// Blocks that all run at once, and whose threads go from line to line. With reductions kFewBlocks a multiprocessor if
// threads would have less than kFewLines lines otherwise: each block leaves partial results. What repeats comes from
// the first-level cache, so that less of what is in flight comes from memory: then there are more, and as many run at
// once as registers allow.
inline int looping_blocks(StitchConfig& config, const StitchNeeds& needs, int64_t groups, int multiprocessors) {
  constexpr int kBlocksOfPeriod = 12, kFewLines = 4;
  if (!needs.reductions) return multiprocessors * kBlocksOfPeriod;
  const int most = blocks_at_once(config, needs);
  if (most > kFewBlocks) config.blocks = most;
  const int64_t with_lines = groups / (kStitchThreads * kFewLines);
  return int(std::clamp<int64_t>(with_lines, kFewBlocks * multiprocessors, most * multiprocessors));
}

// At most 1 << most_across threads of a block share a line.
inline void launch_lines(StitchConfig& config, const ProgramShape& shape, const StitchNeeds& needs, int multiprocessors,
                         int most_across) {
  StitchArgs& a = config.args;
  const int groups = a.width / config.count;
  a.log_across = log_across(groups, a.lines, most_across);
  const int across = 1 << a.log_across, lines = kStitchThreads >> a.log_across;
  const int of_thread = groups_of_thread(int64_t{a.lines} * groups, needs, multiprocessors);
  config.blocks = needs.blocks;
  const auto wanted = [&] { return looping_blocks(config, needs, int64_t{a.lines} * groups, multiprocessors); };
  if (config.channels_along) {
    const int of_columns = ceil_div(groups, across) + int(config.tails);
    const int images = config.images ? int(shape.images) : 1;
    a.image_lines = a.lines / images;
    if (needs.reductions || (needs.period && !needs.maps))
      spread_lines(a, needs, lines, std::max(1, wanted() / (of_columns * images)), !config.images);
    else
      join_lines(a, lines, of_thread);
    const int at_once = config.images ? share_block(config, needs, images, groups, multiprocessors) : 1;
    launch_groups(config, needs, images, of_columns, at_once);
  } else {
    const int blocks_x = ceil_div(a.lines, lines), steps = ceil_div(groups, across);
    const int parts_along = needs.reductions ? std::clamp(wanted() / blocks_x, 1, ceil_div(steps, 2))
                                             : std::min(ceil_div(steps, of_thread), kMostBlocksY);
    a.line_groups = blocks_x;
    a.steps = ceil_div(steps, parts_along);
    a.columns_each = a.steps * across * config.count;
    a.image_parts = ceil_div(a.width, a.columns_each);
    a.parts = int(shape.images) * a.image_parts;
    config.launch.blocks_x = uint32_t(blocks_x);
    config.launch.blocks_y = uint32_t(a.image_parts);
    a.block_parts = blocks_x * a.image_parts;
    config.launch.threads = kStitchThreads;
  }
}

// kTileElements of a tile is small enough for the elements of several tensors, and for values of channels, to fit into
// registers. There are fewer if the tensors' elements and results, and addresses of elements that are read one by one,
// take more than kMostTileBytes of them.
constexpr int kTileElements = 32, kLeastElements = 16, kTileColumns = 4, kMostTileBytes = 320, kAddressBytes = 8;

// A tile per thread, or kLeastElements: while one thread waits for its loads or stores, others of the multiprocessor,
// of which registers allow 40 or more, read; the more blocks, the less the last ones keep most of the GPU waiting. With
// reductions two, so that partial sums of blocks are small compared with what it reads.
inline void launch_tiles(StitchConfig& config, const ProgramShape& shape, const StitchNeeds& needs,
                         int multiprocessors) {
  StitchArgs& a = config.args;
  const int images = config.images ? int(shape.images) : 1;
  a.image_lines = a.lines / images;
  config.tile_lines = needs.lines;
  while (a.image_lines % config.tile_lines) config.tile_lines /= 2;
  const int bytes = needs.bytes + 4 * needs.stored + kAddressBytes * needs.one_by_one;
  const auto is_large = [&] { return config.tile_lines * config.count * bytes > kMostTileBytes; };
  // The fewer lines, the more columns: both are then adjacent for whole sectors in the threads of a warp.
  const int columns = std::max(kTileColumns, std::min(2 * kTileColumns, kTileElements / config.tile_lines));
  config.count = std::min(config.count, columns);
  while (config.count > kTileColumns && is_large()) config.count /= 2;
  while (config.tile_lines > 4 && is_large()) config.tile_lines /= 2;
  // A warp's accesses are to runs of 64 bytes on both sides. Each run that is written and ends within sectors leaves
  // two parts of sectors, which no cache joins on their way to the second level: these runs are longer, and those on
  // the other side a sector, which the first level holds for the next warp if it is read.
  const int most = (config.count > kTileColumns ? 2 : 3) - int(needs.parts_of_sectors);
  a.log_across = log_across(a.width / config.count, a.image_lines, most, most);
  const int down = (kStitchThreads >> a.log_across) * config.tile_lines;
  const int groups = ceil_div(ceil_div(a.width, config.count), 1 << a.log_across);
  const int tiles = needs.reductions ? 2 : std::max(1, kLeastElements / (config.tile_lines * config.count));
  a.image_parts = ceil_div(a.image_lines, tiles * down);
  if (needs.reductions)
    a.image_parts = std::clamp(a.image_parts, 1, std::max(1, multiprocessors * 16 / (groups * images)));
  // A kernel that adds up two parts of a small plane takes longer than what blocks with one part leave idle.
  const bool has_planes_only = needs.reductions && needs.of_planes == needs.reductions;
  if (has_planes_only && a.image_parts == 2 && groups * images >= 3 * multiprocessors) a.image_parts = 1;
  launch_groups(config, needs, images, groups);
}

// With few channels a block has many lines, so that there are fewer partial results: with 2048 channels they would have
// a third as many bytes as the result. It has fewer columns if no other kernel has to add up the partial results then.
inline void launch_columns(StitchConfig& config, const ProgramShape& shape, const StitchNeeds& needs,
                           int multiprocessors) {
  constexpr int kMost = 5, kLeast = 3;
  const auto is_complete = [&] { return !partial_reductions(config.args, needs).count(); };
  const int lines = config.args.lines / (config.images ? int(shape.images) : 1);
  // Where most of a block's lines would not exist, it has more columns instead.
  for (int most = kStitchLogThreads; most > kLeast && 2 * lines <= kStitchThreads >> kLeast; --most) {
    launch_lines(config, shape, needs, multiprocessors, most);
    const int64_t threads = int64_t{config.launch.blocks_x} * config.launch.blocks_y * kStitchThreads;
    if (is_complete() && threads >= int64_t{multiprocessors} * kEnoughThreads) return;
  }
  launch_lines(config, shape, needs, multiprocessors, kLeast);
  if (is_complete() && config.args.steps <= kLinesAlone) return;
  for (int most = kMost; most >= kLeast; --most) {
    launch_lines(config, shape, needs, multiprocessors, most);
    if (is_complete()) return;
    if (last_block_adds_up(config, needs)) {
      config.semaphores = int(config.args.by_groups.divisor);
      return;
    }
  }
  launch_lines(config, shape, needs, multiprocessors, kMost);
}

inline void configure_finish(StitchConfig& config, const ProgramShape& shape, const StitchNeeds& needs) {
  StitchArgs& a = config.args;
  const PartialReductions left = partial_reductions(a, needs);
  if (!left.count()) return;
  // The fewest threads that can have all parts of a plane in flight at once.
  int shares = 1;
  while (shares * kStitchFinishParts < a.image_parts && shares * kStitchFinishChannels < kStitchThreads) shares *= 2;
  const int of_block = kStitchThreads / shares;
  while (1 << a.log_planes < of_block) ++a.log_planes;
  int blocks = left.of_channels ? stitch_finish_blocks(a.channels) : 1;
  const int planes = needs.heights ? a.heights : int(shape.images);
  if (left.of_planes) blocks = std::max(blocks, ceil_div(a.channels * planes, of_block));
  config.finish = stitch_finish_launch(needs.reductions, blocks);
  config.workspace_bytes = int64_t{4} * needs.numbers * a.parts * a.channels;
}

}  // namespace stitch_launch

// elements: the number of adjacent elements that a thread may compute at once, a power of two.
inline StitchConfig configure_stitch(const ProgramShape& shape, int elements, const StitchNeeds& needs,
                                     const StitchGpu& gpu) {
  using stitch_launch::ceil_div;
  StitchConfig config;
  StitchArgs& a = config.args;
  config.channels_along = shape.rows_are_lines();
  config.images = needs.planes;
  a.channels = int(shape.channels);
  a.rows = int(shape.rows());
  a.lines = int(config.channels_along ? shape.rows() : shape.images * shape.channels);
  a.width = int(config.channels_along ? shape.channels : shape.pixels);
  a.by_channels = make_divider(a.channels);
  config.count = elements;
  while (config.count * needs.stored > stitch_launch::kMostResults) config.count /= 2;
  // Small results: more threads, each with fewer elements, whose instructions take longer than their bytes; above all
  // sums of many taps.
  const auto threads = [&] { return int64_t{a.lines} * ceil_div(a.width, config.count); };
  const bool is_tiled = needs.lines, adds_up = needs.reductions || needs.rows;
  const int wanted = needs.lines_at_once == 1 ? 1024 : adds_up ? 0 : stitch_launch::kFewThreads;  // of a multiprocessor
  while (!is_tiled && config.count > 1 && threads() < int64_t{gpu.multiprocessors} * wanted) config.count /= 2;
  const bool may_end = config.channels_along && !needs.draws && !needs.lines;
  while (a.width % config.count && !(may_end && a.width >= stitch_launch::kLeastGroups * config.count))
    config.count /= 2;
  config.tails = a.width % config.count != 0;
  if (needs.rows)
    stitch_launch::launch_rows(config, shape, needs, gpu);
  else if (needs.lines)
    stitch_launch::launch_tiles(config, shape, needs, gpu.multiprocessors);
  else if (needs.numbers && config.channels_along)
    stitch_launch::launch_columns(config, shape, needs, gpu.multiprocessors);
  else
    stitch_launch::launch_lines(config, shape, needs, gpu.multiprocessors, 8);
  config.launch.pdl = true;
  stitch_launch::configure_finish(config, shape, needs);
  return config;
}

}  // namespace reformer
