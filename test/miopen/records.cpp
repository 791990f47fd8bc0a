#include "records.h"

#include <map>

#include "calls.h"

namespace stub {
namespace {

auto& compiled = *new std::map<uint64_t, int64_t>;
auto& run = *new std::map<uint64_t, int64_t>;
auto& last = *new std::string;
void* stream_of_last = nullptr;

}  // namespace

void record_compilation(uint64_t id) {
  const std::lock_guard lock(state);
  ++compiled[id];
}

void record_run(uint64_t id, const std::string& key, void* stream) {
  const std::lock_guard lock(state);
  ++run[id];
  last = key + "=" + std::to_string(id);
  stream_of_last = stream;
}

int64_t compilations(uint64_t id) {
  const std::lock_guard lock(state);
  return compiled[id];
}

int64_t runs(uint64_t id) {
  const std::lock_guard lock(state);
  return run[id];
}

std::string last_run() {
  const std::lock_guard lock(state);
  return last;
}

void* last_stream() {
  const std::lock_guard lock(state);
  return stream_of_last;
}

void reset_records() {
  const std::lock_guard lock(state);
  compiled.clear();
  run.clear();
  last.clear();
  stream_of_last = nullptr;
}

}  // namespace stub
