// Depthwise weight_grad: lanes are output channels; x and dy of a block of them are brought into scratch memory band by
// band, and every tap's products summed in registers.
#pragma once

#include <vector>

#include "blocks.h"
#include "conv/solver.h"
#include "device.h"
#include "phase.h"
#include "planar.h"

namespace reformer::depthwise {

struct WeightGradConfig {
  Phase rows, columns;  // as in forward
  Planar x, y, filter;
  int64_t multiplier;  // output channels of an input channel
  Blocks blocks;       // of output channels
  int64_t bands;       // of rows of y, in each image
  int64_t band_rows;
  int64_t group_rows;  // rows of y of which a filter row is finished before the next one: they stay in the first cache
  int64_t steps;       // bands in the whole batch
  int64_t parts;       // of the steps: summed apart for the threads' sake, then added up in order
  int64_t x_rows;      // of x at most that a band needs
  int64_t lead;        // zero columns before x's first in scratch
  int64_t x_pitch;     // vectors of a row of x in scratch
  std::vector<int32_t> x_at, y_at, filter_at;  // where each pixel of a band is in scratch, in vectors
  void place_pixels();                         // fills these; until then the config has allocated nothing

  int64_t taps() const { return filter.pixels(); }
  int64_t part_steps() const { return (steps + parts - 1) / parts; }
  // The rows of x that these rows of y meet.
  Range source(Range y_rows) const;
};

// lanes: of a vector of the type computed in.
WeightGradConfig configure_weight_grad(const ConvProblem& problem, int threads, int lanes);

int64_t weight_grad_workspace_bytes(const ConvProblem& problem, const Device& device);
void weight_grad(const ConvProblem& problem, const Device& device, const ConvBuffers& buffers);

}  // namespace reformer::depthwise
