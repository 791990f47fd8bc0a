// The text of a program's own part of a kernel: of a stitch kernel, or of a convolution's.
//
// It is a structure Program:
//   Result               the result's data type
//   Precision            the data type to whose precision its functions are computed (StitchContents)
//   kChannelValues       count of values that depend only on the channel and that elements need; of_channel() computes
//                        them from those that channel_inputs() has read
//   kLoaded              count of values read for each element: acc, full inputs, rows, random numbers; load() reads
//                        those of adjacent elements, except acc, whose index is kAcc (or -1): stitched kernels read
//                        kAccAccess elements of it per access
//   kStored              count of tensors that are stored; store() writes adjacent elements of all, or of all except
//                        kResult: at `at`, or where the tensor's placement has the line and column
//   read_mapped0()       if value 0 of the loaded ones is read through maps of its axes (program/axis_maps.h): reads
//                        it, into Held or, where elements are added up or read one by one, Summed. read_more0() and
//                        load_more() add what few elements have besides
//   kLinesAtOnce         lines of a thread whose loads are in flight at once
//   kResult              index of the first of these with the result's data type; missing if there is none
//   kReductions          count of distinct reductions; kind(), over() and first_number() (of a partial result) describe
//                        them
//   of_element()         computes stored and reduced values from what was loaded, the channel's and the row's values
//   store_reduction<i>() writes the outputs that are reduction i, multiplied by their factors
// and, if a tensor is transposed (program/placement.h), for a block of kLines lines and kCount columns:
//   Tile<kLines, kCount> in place of load(): holds the block, including acc, in its stored types; widen() converts a
//                        line of it to numbers
//   Transposed<kLines, kCount> holds results for transposed tensors, which store() leaves out: put() takes the results
//                        of two lines, and write() writes them
// and, if rows are reduced, which takes one pass for each stage of their reductions and one for the results:
//   Held<kCount>         in place of load(): holds adjacent elements, including acc, in their stored types. read()
//                        reads them (bytes() is their size), and read_row() the row's values; widen() converts them to
//                        numbers; fetch() copies them to shared memory, and take() reads them from there
//   Held::row_values<i>() computes the values common to the row that pass i needs; row_values(i) is their count
//   Held::store_row()    writes the outputs by row, if kStoresRows
//   kHeights             true if some reduction is per height: Over::image means a height then
//   kRowReductions       count of reductions of rows, in the order of their stages; row_kind() tells their kinds
//   kScans               count of scans of rows, in the order of their stages; their results are the last of kLoaded
//                        values. scan_kind() and is_reversed() describe them
//   kStages              count of stages; stage i has the reductions from stage_begin(i) to stage_begin(i + 1), and the
//                        scans from scan_begin(i) to scan_begin(i + 1)
//   of_row<stage>()      computes the values that a stage reduces, and then those that it scans, with the arguments of
//                        of_element(), but only the results of earlier stages
//   named_channels(i)    count of the row's numbers that pass i compares with channels' numbers; name_channels<i>()
//                        returns them. of_row() and of_element() take near = false for channels that none of them names
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace reformer {

std::string stitch_source(const ProgramCall& call);

// The number of floats of a partial result of all its reductions.
int stitch_numbers(const Program& program);

}  // namespace reformer
