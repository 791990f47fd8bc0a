// Shared by the stitch kernels and the host. A program's own part of the kernels is generated
// (programs/stitch_source.h).
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kStitchLogThreads = 8, kStitchThreads = 1 << kStitchLogThreads;
// Greatest number of threads for a row in registers; threads of a block whose row is too long for registers.
constexpr int kStitchMostLanes = 512, kStitchLongRowThreads = 1024;
constexpr int kStitchMostInputs = 32, kStitchMostOutputs = 16, kStitchMostPlacements = 16, kStitchMostTables = 4;
// Logarithm of the number of threads side by side at the end of rows.
constexpr int kStitchLogTail = 3;
// Channels per block of the finish kernel, whose other threads share the channels' parts; parts of a plane per thread.
constexpr int kStitchFinishChannels = 8, kStitchFinishParts = 4;
// Loads per thread in flight when parts are added up: for the threads that share a channel's parts, these are all loads
// of 512 parts, which then take the time of one. More would spill on AMD GPUs; so would more than half as many in a
// program's own kernel, where the last block adds up.
constexpr int kStitchFinishLoads = 16, kStitchLastBlockLoads = 8;
constexpr int kStitchMostSemaphores = 1024;  // groups of columns, for each of which the last block adds up the parts

// A placement (program/placement.h); the program's text has the number of its digits.
struct StitchPlacement {
  Divider of_line[5], of_column;  // by each digit's count, except for the last digit's
  int line[6], column;            // strides; the column's first digit has stride 1 unless the tensor is transposed
};

// A matrix whose rows are looked up: the number of rows, and elements from one row to the next.
struct StitchTable {
  int rows, pitch;
};

// The result as a matrix: in NHWC its lines are pixels and its columns channels; in NCHW lines are channels of images,
// and columns are pixels. A block has threads for `across` groups of adjacent columns, and for several lines: in NHWC
// of all lines, or of those of one image if the program has planes.
struct StitchArgs {
  const void* acc;
  const void* in[kStitchMostInputs];
  void* out[kStitchMostOutputs];
  StitchPlacement placed[kStitchMostPlacements];
  StitchTable tables[kStitchMostTables];
  float* partial;  // [reductions][parts][channels]; for moments three such arrays, one after another
  // NHWC: for each group of columns, the number of blocks that have ended, the last of which adds up the parts; 0
  // before and after each launch. Null: another kernel adds them up.
  unsigned* semaphores;
  int lines, width, channels, rows;
  int held_width;  // of a row in shared memory: a multiple of a thread's group
  int log_across;
  Divider by_groups;  // NHWC: by the number of groups of columns, each of which has blocks of its own
  int parts;          // partial results per channel
  int block_parts;  // partial results of a reduction of everything: one per block, or one per group of columns of each
                    // block
  int log_planes;   // planes per block of the finish kernel, whose other threads share the planes' parts
  Divider by_image_parts;        // NHWC
  int image_lines, image_parts;  // NHWC: lines and parts of one image or height, or all; NCHW: parts of an image
  // A thread has `steps` groups of columns, or fewer at the end. NHWC: they are `step` lines apart; those of the next
  // part begin after `part_step` lines.
  int steps, step, part_step;
  // Logarithm of the number of lines of an image, or of rows at one height, that a block computes at once; it has other
  // images' lines, or rows at other heights, beside them.
  int log_at_once;
  // Rows: number of blocks; if they are reduced per height: number of heights, and rows side by side in an image at one
  // height.
  int blocks, heights;
  Divider by_width;
  Divider by_channels;  // NCHW: to get a line's channel
  int columns_each;     // NCHW: columns per block
  int line_groups;      // NCHW: blocks side by side, of the same columns
};

// The arguments of a convolution kernel that runs a program, followed by those of the program: its lines are pixels,
// and there is no acc.
template <class Args>
struct WithProgram {
  Args conv;
  StitchArgs program;
};

}  // namespace reformer
