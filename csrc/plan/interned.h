// Arguments that operators get repeatedly: programs, by their code; geometries, packed into a number; and plans, by a
// number. Passing or decoding lists takes longer than deciding what to run. Except for some programs, nothing is kept
// longer than it is used, and numbers are never reused.
#pragma once

#include <memory>
#include <optional>

#include "conv/problem.h"
#include "plan.h"
#include "program/program.h"

namespace reformer {

struct InternedProgram {
  Program whole;
  std::optional<Program>
      after_bias;  // if it begins with a bias: the rest of the program, for a convolution with that bias
};

// The program of this code: one shared object as long as anybody holds it. Throws as Program::decode.
std::shared_ptr<const InternedProgram> interned_program(const int64_t* code, int64_t size);

// Unpacks the number made by torch_reformer/runtime/plan.py: from the lowest bits, 8 bits for each number of stride,
// padding and dilation, then 15 for groups. Throws std::invalid_argument if it is negative.
ConvGeometry unpacked_geometry(int64_t number);

// A new number for the plan of this code, valid until it is released. Throws as Plan::decode.
int64_t intern_plan(const int64_t* code, int64_t size);
void release_plan(int64_t number);
std::shared_ptr<const Plan> interned_plan(int64_t number);  // throws std::invalid_argument if there is none

// Numbers of objects held at present.
struct InternedCounts {
  int64_t programs, plans;
};
InternedCounts interned_counts();

}  // namespace reformer
