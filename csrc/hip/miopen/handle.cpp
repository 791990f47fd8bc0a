#include "handle.h"

#include <map>
#include <mutex>
#include <vector>

#include "descriptors.h"
#include "devices.h"

namespace reformer::miopen {
namespace {

constexpr size_t kMostRuns = 1 << 16;  // more than any process has; forgetting them only costs time

// Handles of threads that have ended, by device.
struct Idle {
  std::mutex mutex;
  std::map<int32_t, std::vector<ThreadHandle*>> handles;
};
Idle& idle() {
  static Idle& all = *new Idle;  // torch's threads may outlive static objects
  return all;
}

struct Handles {
  std::map<int32_t, ThreadHandle*> of_device;
  ~Handles() {
    const std::lock_guard<std::mutex> lock(idle().mutex);
    for (const auto& [device, handle] : of_device) idle().handles[device].push_back(handle);
  }
};
thread_local Handles mine;

ThreadHandle* take_idle(int32_t device) {
  const std::lock_guard<std::mutex> lock(idle().mutex);
  auto& left = idle().handles[device];
  if (left.empty()) return nullptr;
  ThreadHandle* const taken = left.back();
  left.pop_back();
  return taken;
}

}  // namespace

ThreadHandle::ThreadHandle(const Api& api, void* stream) : api_(api), stream_(stream) {
  if (const Status status = api.create(&handle_, stream)) throw Failure{"miopenCreateWithStream", status, false};
}

void ThreadHandle::set_stream(void* stream) {
  if (stream == stream_) return;
  check(api_.set_stream(handle_, stream), "miopenSetStream");
  stream_ = stream;
}

void ThreadHandle::note_run(const RunKey& key) {
  if (runs_.size() >= kMostRuns) runs_.clear();
  runs_.insert(key);
}

ThreadHandle* find_handle(int32_t device) {
  const auto found = mine.of_device.find(device);
  return found == mine.of_device.end() ? nullptr : found->second;
}

ThreadHandle& handle_of(const Api& api, int32_t device, void* stream) {
  if (ThreadHandle* found = find_handle(device)) return *found;
  ThreadHandle* const taken = take_idle(device);
  return *(mine.of_device[device] = taken ? taken : new ThreadHandle(api, stream));
}

}  // namespace reformer::miopen
