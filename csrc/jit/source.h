// A kernel's source as one text, for run-time compilers, wherever its files lie.
#pragma once

#include <string>

namespace reformer::gpu {

// The file with every #include "..." of a file beside it replaced by that file. `#pragma once` becomes a guard of
// macros, so conditions around includes mean what they did. #line directives keep the compiler's messages right.
// Throws std::runtime_error if the file can't be read.
std::string flatten(const std::string& path);

}  // namespace reformer::gpu
