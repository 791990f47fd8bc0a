// Depthwise weight_grad. Lanes are output channels: blocks of x and dy are gathered into scratch memory band by band,
// and the products of every tap are summed in registers.
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
  int64_t multiplier;  // output channels per input channel
  Blocks blocks;       // of output channels
  int64_t bands;       // of the rows of y in each image
  int64_t band_rows;
  int64_t group_rows;  // a filter row is finished for so many rows of y before the next one begins: they stay in the
                       // first-level cache
  int64_t steps;       // number of bands in the whole batch
  int64_t parts;       // of the steps: summed separately by the threads, then added up in order
  int64_t x_rows;      // rows of x that a band needs at most
  int64_t lead;        // zero columns in scratch before the first column of x
  int64_t x_pitch;     // vectors per row of x in scratch
  std::vector<int32_t> x_at, y_at, filter_at;  // position of each pixel of a band in scratch, in vectors
  void place_pixels();                         // fills these; before that the config allocates nothing

  int64_t taps() const { return filter.pixels(); }
  int64_t part_steps() const { return (steps + parts - 1) / parts; }
  // The rows of x that these rows of y read.
  Range source(Range y_rows) const;
};

// lanes: per vector of the accumulator's type.
WeightGradConfig configure_weight_grad(const ConvProblem& problem, int threads, int lanes);

int64_t weight_grad_workspace_bytes(const ConvProblem& problem, const Device& device);
void weight_grad(const ConvProblem& problem, const Device& device, const ConvBuffers& buffers);

}  // namespace reformer::depthwise
