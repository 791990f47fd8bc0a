#include "failures.h"

#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

namespace reformer::miopen {
namespace {

struct Failures {
  std::mutex mutex;
  // Indexed by architecture.
  std::map<std::string, std::unordered_map<RunKey, std::string, RunKey::Hash>> messages;
  std::map<std::string, std::set<std::string>> heard;
};
Failures& failures() {
  static Failures& all = *new Failures;  // torch's threads may outlive static objects
  return all;
}

}  // namespace

const char* find_failure(const RunKey& run, const std::string& arch) {
  Failures& all = failures();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto on = all.messages.find(arch);
  if (on == all.messages.end()) return nullptr;
  const auto found = on->second.find(run);
  return found == on->second.end() ? nullptr : found->second.c_str();
}

bool note_failure(const RunKey& run, const std::string& arch, const std::string& message) {
  Failures& all = failures();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.messages[arch].emplace(run, message);
  return all.heard[arch].insert(message).second;
}

}  // namespace reformer::miopen
