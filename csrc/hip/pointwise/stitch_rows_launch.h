// Launches of the stitch kernels that reduce or scan rows: threads of a row, and rows of a block.
#pragma once

#include <algorithm>
#include <climits>

#include "stitch_config.h"
#include "stitch_needs.h"

namespace reformer::stitch_launch {

constexpr int kSharedBesidesRows = 2048;  // bytes used by a block and the driver
constexpr int kWideAccess = 4;            // elements that a thread computes at once

// Divides rows of groups of `count` elements: chooses the number of threads per row, and of groups per thread.
inline void divide_rows(StitchConfig& config, const StitchNeeds& needs) {
  const int groups = ceil_div(config.args.width, config.count);
  // Elements per thread: fewer if elements need more registers, so that at least two blocks fit on a multiprocessor.
  const int most = std::clamp(std::min(64 / std::max(needs.bytes, 1), 48 / std::max(needs.numbers, 1)), 8, 32);
  // Three groups of four where no thread is idle then, as in rows of 96, 192 or 384 elements: with four elements a
  // thread, the instructions of a row, not its bytes, took the time. More would leave room for one block only.
  constexpr int kMostWhole = 12;
  const auto fits = [&](int lanes, int vectors) {
    const int elements = vectors * config.count;
    return elements <= most || (vectors * lanes == groups && elements <= kMostWhole);
  };
  // Within a warp minimise idle threads, then elements per thread; beyond a warp, the number of threads. Threads that
  // read 32 adjacent elements at once, or all their elements by few instructions, read few cache lines more than once.
  constexpr int kFew = 4, kLeastLanes = 8;
  // Instructions of a row's loop and of its reductions take most of the time if threads access few elements at once:
  // then a warp has several rows where that leaves no more threads idle.
  const bool several_rows = config.count < kWideAccess;
  int least = INT32_MAX;
  for (int lanes = 32; lanes; lanes /= 2) {
    const int vectors = ceil_div(groups, lanes), along = config.count * lanes;
    const bool reads_lines = along >= std::min(32, config.args.width) || (vectors <= kFew && lanes >= kLeastLanes);
    const bool is_better = several_rows ? vectors * lanes <= least : vectors * lanes < least;
    if (reads_lines && fits(lanes, vectors) && is_better)
      least = vectors * lanes, config.lanes = lanes, config.vectors = vectors;
  }
  for (int lanes = 64; !config.lanes && lanes <= kStitchMostLanes; lanes *= 2)
    if (const int vectors = ceil_div(groups, lanes); fits(lanes, vectors))
      config.lanes = lanes, config.vectors = vectors;
}

// With groups of eight, a quarter of the threads would be idle in most kernels of rows of 192, 384 or 768 elements, but
// none with groups of four. On an H200 layer norms take .86 to .93 of the time then, and .4 to .75 if they draw random
// numbers. With column reductions, whose registers are as many as the elements, that was not measured.
inline void choose_lanes(StitchConfig& config, const StitchNeeds& needs) {
  divide_rows(config, needs);
  if (needs.reductions || !config.lanes || config.whole_rows() || config.count <= kWideAccess) return;
  StitchConfig narrower = config;
  narrower.count = kWideAccess, narrower.tails = false, narrower.lanes = narrower.vectors = 0;
  divide_rows(narrower, needs);
  if (narrower.lanes && narrower.whole_rows()) config = narrower;
}

// Rows that are too long for registers are kept in shared memory if that has room for two rows, so that one is read
// while another one is computed, or for one.
inline void launch_long_rows(StitchConfig& config, const StitchNeeds& needs, const StitchGpu& gpu) {
  config.args.held_width = ceil_div(config.args.width, config.count) * config.count;
  const int64_t bytes = int64_t{config.args.held_width} * needs.bytes;
  config.blocks = int((gpu.shared_bytes - kSharedBesidesRows) / (bytes + kSharedBesidesRows));
  config.blocks = std::min(config.blocks, 2);
  config.ahead = config.blocks || needs.loaded > 2 ? 1 : 2;
  if (config.blocks) config.launch.shared_bytes = uint32_t((bytes + 15) / 16 * 16);
  config.lanes = config.blocks == 2 ? kStitchLongRowThreads / 2 : kStitchLongRowThreads;
  config.args.blocks = std::min(config.args.lines, gpu.multiprocessors * (config.blocks ? config.blocks : 8));
  config.args.parts = config.args.blocks;
  config.launch.threads = uint32_t(config.lanes);
  config.launch.blocks_x = uint32_t(config.args.blocks);
}

// For reductions per height: how many of a block's rows, `rows` at once, are at one height, and how many parts the rows
// of a height have. Rows of a block are adjacent where that leaves few threads idle.
inline void launch_heights(StitchConfig& config, const ProgramShape& shape, const StitchNeeds& needs,
                           const StitchGpu& gpu, int rows) {
  constexpr int kFewSums = 8, kLeastSteps = 4;  // numbers of a thread; rows that it adds up
  StitchArgs& a = config.args;
  const int width = int(shape.pixels / shape.height);
  a.heights = int(shape.height);
  a.image_lines = a.lines / a.heights;
  a.by_width = make_divider(width);
  const auto idle = [&](int log) {
    const int at_once = 1 << log, heights = rows / at_once;
    return double(ceil_div(a.heights, heights) * heights) / a.heights * ceil_div(a.image_lines, at_once) * at_once;
  };
  while (2 << a.log_at_once <= std::min(width, rows)) ++a.log_at_once;
  for (int log = 0; 1 << log <= rows; ++log)
    if (idle(log) < 0.9 * idle(a.log_at_once)) a.log_at_once = log;
  const int groups = ceil_div(a.heights, rows >> a.log_at_once), steps = ceil_div(a.image_lines, 1 << a.log_at_once);
  const int of_multiprocessor = needs.numbers * config.vectors * config.count <= kFewSums ? 4 : 2;
  a.image_parts = std::clamp(gpu.multiprocessors * of_multiprocessor / groups, 1, ceil_div(steps, kLeastSteps));
  a.blocks = groups * a.image_parts;
  a.parts = a.heights * a.image_parts;
}

inline void launch_rows(StitchConfig& config, const ProgramShape& shape, const StitchNeeds& needs,
                        const StitchGpu& gpu) {
  choose_lanes(config, needs);
  if (!config.lanes) return launch_long_rows(config, needs, gpu);
  const int multiprocessors = gpu.multiprocessors;
  const int threads = std::max(kStitchThreads, config.lanes),
            steps = ceil_div(config.args.lines, threads / config.lanes);
  // Each block has partial sums of the columns: beyond these numbers they cost more than the blocks hide.
  constexpr int kLeastSteps = 16;
  const int most =
      needs.numbers ? std::clamp(steps / kLeastSteps, 2 * multiprocessors, 4 * multiprocessors) : 64 * multiprocessors;
  config.args.blocks = config.args.parts = std::min({steps, std::max(ceil_div(steps, 2), 2 * multiprocessors), most});
  if (needs.heights) launch_heights(config, shape, needs, gpu, threads / config.lanes);
  config.args.block_parts = config.args.blocks * config.vectors;
  config.launch.threads = uint32_t(threads);
  config.launch.blocks_x = uint32_t(config.args.blocks);
}

}  // namespace reformer::stitch_launch
