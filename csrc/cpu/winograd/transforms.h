// The three transforms of Winograd convolution, compiled for each instruction set.
#pragma once

#include "config.h"

namespace reformer {

struct WinogradTransforms {
  void (*filter)(const WinogradConfig& config, int panel, int chunk, float* to);
  void (*input)(const WinogradConfig& config, int chunk, int64_t begin, int64_t end, const WinogradPlanes<float>& to);
  void (*output)(const WinogradConfig& config, int panel, int64_t begin, int64_t end,
                 const WinogradPlanes<const float>& from);
};

// Transforms for tiles of 2x4 or 4x4.
WinogradTransforms winograd_transforms(WinogradTile tile, Isa isa);

}  // namespace reformer
