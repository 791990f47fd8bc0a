// Programs, decoded once for all calls.
#pragma once

#include <optional>

#include "epilogue.h"

namespace reformer {

struct KeptProgram {
  Epilogue whole;
  std::optional<Epilogue> after_bias;  // where it begins with a bias: the rest of it, for a convolution with that bias
};

// An operator is given a program by its code, or by the one number that keep_program() gave for that, which is quicker
// to hand over. Kept for good: there are as many as a process has written. Throw as Epilogue::decode.
int64_t keep_program(const int64_t* code, int64_t size);
const KeptProgram& kept_program(const int64_t* code, int64_t size);

}  // namespace reformer
