// The kernel that adds up the partial results of a program's reductions, from whichever kernel.
#pragma once

#include <cstddef>

#include "jit/gpu.h"
#include "stitch_args.h"

namespace reformer {

// Launch of the kernel that adds up the parts of so many reductions, of which each needs at most `blocks` blocks. A
// block has one reduction: parts take long to arrive, so those of all reductions are loaded at the same time.
inline gpu::Launch stitch_finish_launch(size_t reductions, int blocks) {
  gpu::Launch launch;
  launch.blocks_x = uint32_t(blocks);
  launch.blocks_y = uint32_t(reductions);
  launch.threads = kStitchThreads;
  launch.pdl = true;
  return launch;
}

// Number of blocks for reductions of channels.
inline int stitch_finish_blocks(int channels) { return (channels + kStitchFinishChannels - 1) / kStitchFinishChannels; }

}  // namespace reformer
