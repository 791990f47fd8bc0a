// Properties of a program that the launch of its kernels depends on, besides the shape of the result and the GPU.
#pragma once

#include <cstddef>

#include "program/program.h"

namespace reformer {

struct StitchNeeds {
  size_t reductions;
  int numbers;               // floats that a partial result has for each channel and part
  int loaded;                // tensors that are read element by element
  int bytes;                 // of an element of all of these
  int stored;                // tensors that are written element by element
  bool rows;                 // whether rows are reduced
  bool planes;               // whether something is known of each channel of each image
  bool draws;                // whether there are random numbers, of which aligned groups have some in common
  int lines;                 // lines_per_access() of transposed tensors; 0: there are none
  int period;                // of lines, after which a tensor's elements are read again; 0: they are not
  size_t of_planes, of_all;  // reductions to one number of each plane, and to one of all
};

StitchNeeds stitch_needs(const ProgramCall& call);

}  // namespace reformer
