// A kernel's source as one text for run-time compilers, wherever its files are.
#pragma once

#include <string>

namespace reformer::gpu {

// The file, with every #include "..." of a neighbouring file replaced by that file's content. `#pragma once` becomes a
// macro guard, so conditional includes keep their meaning. #line directives keep the compiler's messages right. Throws
// std::runtime_error if a file can't be read.
std::string flatten(const std::string& path);

}  // namespace reformer::gpu
