// MIOpen's handles: one a thread and device, as they are not safe between threads, and with them what they have run.
// They are never destroyed, as graphs may have captured their kernels: the handle of a thread that has ended is
// another's.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "api.h"
#include "conv/problem.h"

namespace reformer::miopen {

// A solver's run of a problem.
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

// While one is used its device is the thread's current one (devices.h).
class ThreadHandle {
 public:
  // Throws Failure.
  ThreadHandle(const Api& api, void* stream);
  ThreadHandle(const ThreadHandle&) = delete;

  Handle get() const { return handle_; }
  // Where its work goes from now on. Throws Failure.
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
// The same, made if there is none, which a graph that is being captured forbids. Throws Failure.
ThreadHandle& handle_of(const Api& api, int32_t device, void* stream);

}  // namespace reformer::miopen
