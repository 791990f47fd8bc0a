// Arguments that operators get again and again: programs, by their code, geometries, packed into a number, and plans,
// by a number. To hand lists over, or to decode them, takes longer than to decide what to run. Nothing is held for
// longer than it is in use, but for some programs, and no number is given twice.
#pragma once

#include <memory>
#include <optional>

#include "conv/problem.h"
#include "plan.h"
#include "program/program.h"

namespace reformer {

struct InternedProgram {
  Program whole;
  std::optional<Program> after_bias;  // where it begins with a bias: the rest of it, for a convolution with that bias
};

// The program of this code, which is the same one as long as anybody holds it. Throws as Program::decode.
std::shared_ptr<const InternedProgram> interned_program(const int64_t* code, int64_t size);

// From the number that torch_reformer/runtime/plan.py makes of it: 8 bits each for stride, padding and
// dilation, the first lowest, and 15 for groups.
// Throws std::invalid_argument if it is negative.
ConvGeometry unpacked_geometry(int64_t number);

// A new number for the plan of this code, until that is released. Throws as Plan::decode.
int64_t intern_plan(const int64_t* code, int64_t size);
void release_plan(int64_t number);
std::shared_ptr<const Plan> interned_plan(int64_t number);  // throws std::invalid_argument if there is none

// How many are held now.
struct InternedCounts {
  int64_t programs, plans;
};
InternedCounts interned_counts();

}  // namespace reformer
