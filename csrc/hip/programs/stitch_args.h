// Shared by the stitch kernels and their host. A program's own part of them is generated (programs/stitch_source.h).
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kStitchThreads = 256;
// Threads that have a row in registers, and those of a block whose row is too long for that.
constexpr int kStitchMostLanes = 512, kStitchLongRowThreads = 1024;
constexpr int kStitchMostInputs = 32, kStitchMostOutputs = 16, kStitchMostPlacements = 12, kStitchMostTables = 4;
// The logarithm of how many threads are side by side where rows end.
constexpr int kStitchLogTail = 3;
// Channels of a block of the finish, whose other threads share their parts; and parts of a plane that a thread has.
constexpr int kStitchFinishChannels = 8, kStitchFinishParts = 4;
// Loads of a thread that are in flight where parts are added up: those of the threads that share a channel's parts are
// all of 512, and take the time of one. More would spill on AMD's GPUs, and in a program's own kernel, where the last
// block does it, more than half of them.
constexpr int kStitchFinishLoads = 16, kStitchLastBlockLoads = 8;
constexpr int kStitchMostSemaphores = 1024;  // groups of columns of whose blocks the last one adds up the parts

// A placement (program/placement.h) of which the program's text says how many digits it has.
struct StitchPlacement {
  Divider of_line[3], of_column;  // by a digit's count; the last digit is what is left
  int line[4], column;            // strides; that of a column's first digit is 1, but of what is transposed
};

// A matrix of which rows are looked up: how many, and elements from one to the next.
struct StitchTable {
  int rows, pitch;
};

// The result as a matrix: in NHWC its lines are pixels and its columns channels, in NCHW lines are channels of images
// and columns pixels. A block has threads for `across` groups of neighbouring columns, and for several lines: in NHWC
// of all lines, or of those of an image if the program has planes.
struct StitchArgs {
  const void* acc;
  const void* in[kStitchMostInputs];
  void* out[kStitchMostOutputs];
  StitchPlacement placed[kStitchMostPlacements];
  StitchTable tables[kStitchMostTables];
  float* partial;  // [reductions][parts][channels], for moments three such arrays one after the other
  // NHWC: how many blocks of each group of columns have ended, of which the last one adds up the parts; 0 before and
  // after each launch. Null: another kernel adds them up.
  unsigned* semaphores;
  int lines, width, channels, rows;
  int held_width;  // of a row in shared memory: whole groups of a thread's elements
  int log_across;
  int parts;                     // partial results of a channel
  int block_parts;               // those of a reduction of everything: of each block one, or one for each of its groups
  int log_planes;                // planes that a block of the finish has, whose other threads share their parts
  int image_lines, image_parts;  // NHWC: of lines and parts those of an image, or all; NCHW: an image's parts
  Divider by_channels;           // NCHW: a line's channel
  int columns_each;              // NCHW: columns of a block
};

// The arguments of a convolution's kernel that runs a program itself and, behind them, those of the program: its lines
// are pixels, and there is no acc.
template <class Args>
struct WithProgram {
  Args conv;
  StitchArgs program;
};

}  // namespace reformer
