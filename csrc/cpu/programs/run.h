// Runs programs on the CPU by blocks of elements: the operations are applied one after another to a block's vectors,
// whose values stay in the caches.
#pragma once

#include "device.h"
#include "program/program.h"

namespace reformer {

// Computes the outputs. The result has at least one element.
void run_program(const ProgramCall& call, const Device& device);

}  // namespace reformer
