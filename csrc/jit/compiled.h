// Kernels compiled at run time, each alone, with the cache on disk before the compiler.
#pragma once

#include <optional>
#include <string>

#include "gpu.h"

namespace reformer::gpu {

struct Source {
  std::string name, text;
};

struct Compiled {
  std::string code;
  bool from_cache;
};

// A kernel from the sources that came with the package. Throws std::runtime_error with the compiler's log.
Compiled compile_entry(const Entry& entry, const std::string& architecture);

// Compiles it once in this process: the code object is never freed, as modules may point to it.
const std::string& compiled_once(const Entry& entry, const std::string& architecture);

// Source for somebody else to compile, so that launching the kernel only loads it. None if its code is there: packaged,
// compiled before in this process, or in the cache.
std::optional<Source> missing_source(const Entry& entry, const std::string& architecture);

// Adds the code that somebody else made of that.
void add_compiled(const Entry& entry, const std::string& architecture, std::string code);

}  // namespace reformer::gpu
