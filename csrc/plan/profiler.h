// Ranges of PyTorch's profiler, which the library for the torch at hand opens (csrc/aten/profiler.h).
#pragma once

#include <cstdint>
#include <string>

// begin: what end takes.
struct ReformerProfiler {
  int32_t (*is_active)();
  void* (*begin)(const char* name);
  void (*end)(void* range);
};

namespace reformer {

void set_profiler(const ReformerProfiler& functions);

// True if somebody listens in this thread: names of ranges are made only then.
bool is_profiled();

// A range from its construction to its destruction.
class ProfilerRange {
 public:
  explicit ProfilerRange(const std::string& name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  void* const range_;
};

}  // namespace reformer
