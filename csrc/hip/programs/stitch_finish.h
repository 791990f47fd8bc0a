// The kernel that adds up the partial results of a program's reductions, whichever kernel left them.
#pragma once

#include <cstddef>

#include "jit/gpu.h"
#include "stitch_args.h"

namespace reformer {

// How the kernel that adds up the parts of so many reductions is launched, if it needs so many blocks for any of them.
// A block has one reduction: parts take long to arrive, and so those of all reductions are under way at once.
inline gpu::Launch stitch_finish_launch(size_t reductions, int blocks) {
  gpu::Launch launch;
  launch.blocks_x = uint32_t(blocks);
  launch.blocks_y = uint32_t(reductions);
  launch.threads = kStitchThreads;
  launch.pdl = true;
  return launch;
}

// The blocks that reductions of channels need.
inline int stitch_finish_blocks(int channels) { return (channels + kStitchFinishChannels - 1) / kStitchFinishChannels; }

}  // namespace reformer
