#include "handle.h"

#include <map>
#include <memory>

#include "descriptors.h"
#include "devices.h"

namespace reformer::miopen {
namespace {

constexpr size_t kMostRuns = 1 << 16;  // more than any process has; forgetting them costs time only

using Handles = std::map<int32_t, std::unique_ptr<ThreadHandle>>;
thread_local Handles handles;

}  // namespace

ThreadHandle::ThreadHandle(const Api& api, void* stream) : api_(api), stream_(stream) {
  check(api.create(&handle_, stream), "miopenCreateWithStream");
}
ThreadHandle::~ThreadHandle() { api_.destroy(handle_); }

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
  const auto found = handles.find(device);
  return found == handles.end() ? nullptr : found->second.get();
}

ThreadHandle& handle_of(const Api& api, int32_t device, void* stream) {
  if (ThreadHandle* found = find_handle(device)) return *found;
  return *(handles[device] = std::make_unique<ThreadHandle>(api, stream));
}

}  // namespace reformer::miopen
