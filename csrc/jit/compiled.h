// Kernels compiled at run time, one by one, with the cache on disk consulted before the compiler.
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

// Compiles a kernel from the packaged sources. Throws std::runtime_error with the compiler's log.
Compiled compile_entry(const Entry& entry, const std::string& architecture);

// Compiles it at most once in this process. The code object is never freed, as modules may point to it.
const std::string& compiled_once(const Entry& entry, const std::string& architecture);

// The source for another process to compile, so that launching the kernel here only loads it. nullopt if its code
// already exists: packaged, compiled earlier in this process, or in the cache.
std::optional<Source> missing_source(const Entry& entry, const std::string& architecture);

// Adds the code that another process compiled from missing_source().
void add_compiled(const Entry& entry, const std::string& architecture, std::string code);

}  // namespace reformer::gpu
