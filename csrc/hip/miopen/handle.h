// MIOpen's handles, one per thread and device since they are not thread-safe, and the solvers that each has run.
// Handles are never destroyed, as graphs may have captured their kernels: the handle of a thread that has ended is
// reused by another thread.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "api.h"
#include "conv/problem.h"

namespace reformer::miopen {

// A solver's run for a problem.
struct RunKey {
  ConvProblem problem;
  uint64_t solver;
  bool deterministic;
  bool operator==(const RunKey& other) const {
    return problem == other.problem && solver == other.solver && deterministic == other.deterministic;
  }
  struct Hash {
    size_t operator()(const RunKey& key) const {
      return size_t(hash(key.problem) ^ key.solver * 2 ^ key.deterministic);
    }
  };
};

// While a handle is used, its device is the thread's current one (devices.h).
class ThreadHandle {
 public:
  // Throws Failure.
  ThreadHandle(const Api& api, void* stream);
  ThreadHandle(const ThreadHandle&) = delete;

  Handle get() const { return handle_; }
  // Sets the stream of its work from now on. Throws Failure.
  void set_stream(void* stream);

  // MIOpen prepares a kernel for each handle at its first run, which can't be captured into a graph.
  bool has_run(const RunKey& key) const { return runs_.count(key) != 0; }
  void note_run(const RunKey& key);

 private:
  const Api& api_;
  Handle handle_ = nullptr;
  void* stream_;
  std::unordered_set<RunKey, RunKey::Hash> runs_;
};

// This thread's handle of the device, or null if it has none yet.
ThreadHandle* find_handle(int32_t device);
// This thread's handle of the device, created if there is none; forbidden while a graph is being captured. Throws
// Failure.
ThreadHandle& handle_of(const Api& api, int32_t device, void* stream);

}  // namespace reformer::miopen
