// The part of a stitch kernel that is a program's own, as text.
//
// It is a structure Program:
//   kChannelValues  numbers that depend on the channel only and that elements need; of_channel() computes them, from
//                   those that channel_inputs() has read
//   kLoaded         numbers read for each element: acc, full inputs, rows, random numbers; load() reads neighbours'
//   kStored         tensors that are stored; store() writes neighbours' values
//   kReductions     reductions, each once; kind(), of_all() and first_number() (of a partial result) say what they are
//   of_element()    what is stored and reduced, from what was loaded and the channel's numbers
//   keep<i>()       writes the outputs that are reduction i, multiplied by their factors
#pragma once

#include <string>

#include "../../epilogue.h"

namespace reformer {

// types: of the inputs. result: what Stored::result is.
std::string stitch_source(const Epilogue& program, const std::vector<Stored>& types, Stored result);

// How many numbers a partial result of all its reductions is.
int stitch_numbers(const Epilogue& program);

}  // namespace reformer
