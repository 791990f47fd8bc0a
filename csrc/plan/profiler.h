// Ranges of PyTorch's profiler, opened by the library for the installed torch (csrc/aten/profiler.h).
#pragma once

#include <cstdint>
#include <string>

// begin returns the argument of end.
struct ReformerProfiler {
  int32_t (*is_active)();
  void* (*begin)(const char* name);
  void (*end)(void* range);
};

namespace reformer {

void set_profiler(const ReformerProfiler& functions);

// True if this thread is being profiled; otherwise names of ranges need not be made.
bool is_profiled();

// A profiler range that lasts as long as the object.
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
