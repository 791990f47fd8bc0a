// The three convolutions on host memory, by plain loops in double precision; rounded once, to nearest even.
#pragma once

#include "problem.h"

namespace stub {

// first and second are the operands in the interface's order (w and x; dy and w; dy and x), result the third tensor.
void convolve(const Problem& problem, const void* first, const void* second, void* result);

// Fills the result's tensor with NaN.
void poison(const Problem& problem, void* result);

int64_t result_elements(const Problem& problem);
int64_t first_elements(const Problem& problem);
int64_t second_elements(const Problem& problem);

}  // namespace stub
