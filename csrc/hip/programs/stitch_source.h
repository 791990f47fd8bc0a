// The part of a kernel that is a program's own, as text: of a stitch kernel, or of a convolution's.
//
// It is a structure Program:
//   Result               the result's data type
//   Precision            that which its functions are as exact as
//   kChannelValues       numbers that depend on the channel only and that elements need; of_channel() computes them
//                        from those that channel_inputs() has read
//   kLoaded              numbers read for each element: acc, full inputs, rows, random numbers; load() reads those of
//                        adjacent elements, but not acc, which is number kAcc (or -1): stitched kernels read
//                        kAccAccess elements of it at once
//   kStored              tensors that are stored; store() writes adjacent elements of all, or of all but kResult: at
//                        `at`, or where the line and column are by the tensor's placement
//   kResult              the first of these with the result's data type, if there is any
//   kReductions          reductions, each once; kind(), over() and first_number() (of a partial result) describe them
//   of_element()         what is stored and reduced, from what was loaded, the channel's numbers, the row's values
//   store_reduction<i>() writes the outputs that are reduction i, multiplied by their factors
// and, where a tensor is transposed (program/placement.h), of a block of kLines lines and kCount columns:
//   Tile<kLines, kCount>   in the place of load(): what is read of the block, acc too, as it lies in memory; widen()
//                          makes numbers of a line of it
//   Transposed<kLines, kCount> what is stored of it to transposed tensors, which store() leaves out: put() takes the
//   results of
//                          two lines, and write() writes
// and, where rows are reduced, which are gone through once a stage of their reductions and once for the results:
//   Held<kCount>         in the place of load(): what is read of adjacent elements, acc too, as it lies in memory, by
//                        read(), which are bytes(), and of the row, by read_row(); widen() makes numbers of it. fetch()
//                        copies it to shared memory, and take() reads it there
//   Held::row_values<i>() what pass i needs that is the same for all of a row: row_values(i) numbers
//   Held::store_row()    writes a row's numbers, if kStoresRows
//   kRowReductions       reductions of rows, in the order of their stages; is_row_max() tells their kinds
//   kStages              of which those of stage i are from stage_begin(i) to stage_begin(i + 1)
//   of_row<stage>()      the values that a stage reduces, from what of_element() has but of earlier stages only
//   named_channels(i)    how many numbers of the row pass i compares with channels' numbers; name_channels<i>() gives
//                        them. of_row() and of_element() take near = false for channels that are not such
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace reformer {

std::string stitch_source(const ProgramCall& call);

// The number of floats of a partial result of all its reductions.
int stitch_numbers(const Program& program);

}  // namespace reformer
