// Depthwise forward and input_grad, which differ only in their phases. Lanes are planes: blocks of planes are gathered
// into scratch memory band by band, with zero columns for the padding, summed there and scattered back.
#pragma once

#include "blocks.h"
#include "conv/solver.h"
#include "device.h"
#include "phase.h"
#include "planar.h"

namespace reformer::depthwise {

// Sources of a result row: it sums over the filter rows first_tap, first_tap + tap_step ..., `taps` of them. The first
// one meets source row first_source, each next one a row in_dilation further on.
struct RowTaps {
  int64_t first_source, first_tap, tap_step, taps, in_dilation;
};

struct CorrelateConfig {
  Axis rows, columns;
  std::vector<RowTaps> row_taps;  // for each row of the result
  Planar source, filter, result;
  Direction direction;
  int64_t multiplier;  // output channels per input channel
  int64_t passes;      // number of source planes that each result plane sums over
  Blocks blocks;
  int64_t block_count, bands;                 // bands: of result rows in each block
  int64_t band_rows;                          // result rows per band
  int64_t source_rows;                        // source rows that a band needs at most
  int64_t lead;                               // zero columns in scratch before the first source column
  int64_t source_pitch;                       // vectors per source row in scratch
  int64_t result_pitch;                       // vectors per result row in scratch
  std::vector<int32_t> source_at, result_at;  // position of each pixel of a band in scratch, in vectors
  std::vector<int32_t> filter_at;

  // Maps a plane of the result to the source plane of this pass.
  PlaneMap source_map(int64_t pass) const;
  PlaneMap filter_map(int64_t pass) const;
  int64_t source_vectors() const { return source_rows * source_pitch; }
  int64_t result_vectors() const { return band_rows * result_pitch; }
};

// lanes: per vector of the accumulator's type.
CorrelateConfig configure_correlate(const ConvProblem& problem, int threads, int lanes);

// Result columns per step of the kernel, for `count` columns: as few as possible beyond the end.
int column_block(int64_t count);

void correlate(const ConvProblem& problem, const Device& device, const ConvBuffers& buffers);

}  // namespace reformer::depthwise
