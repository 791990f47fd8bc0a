// Depthwise forward and input_grad, which differ only in their phases: lanes are planes, a block of planes at a time is
// brought into scratch memory band by band, with the columns that padding asks for, summed there and taken back.
#pragma once

#include "blocks.h"
#include "conv/solver.h"
#include "device.h"
#include "phase.h"
#include "planar.h"

namespace reformer::depthwise {

// Sources of a row of results: filter rows first_tap, first_tap + tap_step ..., `taps` of them, of which the
// first meets first_source of the source and the next ones those in_dilation further on each.
struct RowTaps {
  int64_t first_source, first_tap, tap_step, taps, in_dilation;
};

struct CorrelateConfig {
  Axis rows, columns;
  std::vector<RowTaps> row_taps;  // of each row of the result
  Planar source, filter, result;
  Direction direction;
  int64_t multiplier;  // output channels of an input channel
  int64_t passes;      // sources that each result plane is summed from
  Blocks blocks;
  int64_t block_count, bands;                 // bands of result rows in each block
  int64_t band_rows;                          // result rows of a band
  int64_t source_rows;                        // of the source at most that a band needs
  int64_t lead;                               // zero columns before the source's first in scratch
  int64_t source_pitch;                       // vectors of a source row in scratch
  int64_t result_pitch;                       // vectors of a result row in scratch
  std::vector<int32_t> source_at, result_at;  // where each pixel of a band is in scratch, in vectors
  std::vector<int32_t> filter_at;

  // From a plane of the result to those it is made of.
  PlaneMap source_map(int64_t pass) const;
  PlaneMap filter_map(int64_t pass) const;
  int64_t source_vectors() const { return source_rows * source_pitch; }
  int64_t result_vectors() const { return band_rows * result_pitch; }
};

// lanes: of a vector of the type computed in.
CorrelateConfig configure_correlate(const ConvProblem& problem, int threads, int lanes);

// Result columns that one step of the kernel computes for `count` of them: as few beyond the end as possible.
int column_block(int64_t count);

void correlate(const ConvProblem& problem, const Device& device, const ConvBuffers& buffers);

}  // namespace reformer::depthwise
