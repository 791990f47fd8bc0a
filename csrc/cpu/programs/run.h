// Program programs on the CPU: by blocks of elements, for each of which a program's operations are done one after the
// other on vectors, while its values are in the caches.
#pragma once

#include "device.h"
#include "program/program.h"

namespace reformer {

// Computes the outputs. The result has at least one element.
void run_program(const ProgramCall& call, const Device& device);

}  // namespace reformer
