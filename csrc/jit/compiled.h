// Kernels compiled at run time, each alone, with the cache on disk before the compiler.
#pragma once

#include <string>

#include "gpu.h"

namespace reformer::gpu {

struct Compiled {
  std::string code;
  bool from_cache;
};

// A kernel from the sources that came with the package. Throws std::runtime_error with the compiler's log.
Compiled compile_entry(const Entry& entry, const std::string& architecture);

}  // namespace reformer::gpu
