// Properties of a program on which the launch of its kernels depends, besides the result's shape and the GPU.
#pragma once

#include <cstddef>

#include "program/program.h"

namespace reformer {

struct StitchNeeds {
  size_t reductions;
  int numbers;               // floats of a partial result per channel and part
  int loaded;                // tensors that are read element by element
  int bytes;                 // per element, of all these tensors, and of results of scans
  int stored;                // tensors that are written element by element
  bool rows;                 // rows are reduced or scanned
  int scans;                 // of rows
  bool planes;               // some values belong to a channel of an image
  bool heights;              // columns are reduced per height
  bool draws;                // there are random numbers, which are drawn for aligned groups of elements
  int lines, packed;         // lines_per_access() and packed_columns() of transposed tensors; 0 and 1: there are none
  int channels;              // values of each channel that are computed once for a thread's lines
  int added;                 // registers of a thread's partial results per channel
  int steps;                 // operations of an element
  int one_by_one;            // tensors whose elements are read one by one and added up
  int lines_at_once;         // whose loads are in flight, in element-wise kernels
  int blocks;                // of element-wise kernels that a multiprocessor has to run at once, or 0
  bool parts_of_sectors;     // writes_parts_of_sectors() of transposed tensors
  int period;                // lines after which a tensor's elements are read again; 0: they are not
  bool maps;                 // tensors are read through maps of axes, or written to targets
  size_t of_planes, of_all;  // reductions to one number per plane (or height and channel), and to a single number
};

StitchNeeds stitch_needs(const ProgramCall& call);

}  // namespace reformer
