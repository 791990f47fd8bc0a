#include "calls.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "codes.h"

namespace stub {
namespace {

struct Injection {
  int status, count;
};

// Never destroyed: threads may end when the process has already left main.
auto& injections = *new std::map<std::string, Injection>;
auto& counts = *new std::map<std::string, std::map<uint64_t, int64_t>>;
auto& ended = *new std::set<uint64_t>;  // threads
std::atomic<int64_t> failed{0};
thread_local const char* current = "no call";

}  // namespace

std::mutex state;

void misuse(const std::string& sentence) {
  std::fprintf(stderr, "MIOpen stub: %s: %s\n", current, sentence.c_str());
  std::abort();
}

int fail(int status, const std::string& sentence) {
  ++failed;
  std::fprintf(stderr, "MIOpen(HIP): Error [%s] %s (status %d)\n", current, sentence.c_str(), status);
  return status;
}

void enter(const char* function) {
  current = function;
#ifdef STUB_DECOY
  misuse("this library must not be used");
#endif
  const std::lock_guard lock(state);
  ++counts[function][this_thread()];
}

int injected() {
  std::unique_lock lock(state);
  const auto found = injections.find(current);
  if (found == injections.end() || found->second.count == 0) return kSuccess;
  --found->second.count;
  const int status = found->second.status;
  lock.unlock();
  return fail(status, "a test wants it to fail");
}

int64_t calls(const std::string& function) {
  const std::lock_guard lock(state);
  int64_t sum = 0;
  for (const auto& [thread, count] : counts[function]) sum += count;
  return sum;
}

int64_t calls_of_thread(const std::string& function) {
  const std::lock_guard lock(state);
  return counts[function][this_thread()];
}

int64_t failures() { return failed; }

void inject(const std::string& function, int status, int count) {
  const std::lock_guard lock(state);
  injections[function] = {status, count};
}

void reset_calls() {
  const std::lock_guard lock(state);
  injections.clear();
  counts.clear();
  failed = 0;
}

uint64_t this_thread() {
  static std::atomic<uint64_t> threads{0};
  struct Thread {
    const uint64_t number = ++threads;
    ~Thread() {
      const std::lock_guard lock(state);
      ended.insert(number);
    }
  };
  thread_local const Thread thread;
  return thread.number;
}

bool has_ended(uint64_t thread) {
  const std::lock_guard lock(state);
  return ended.count(thread) != 0;
}

}  // namespace stub
