#include "failures.h"

#include <map>
#include <mutex>
#include <unordered_map>

namespace reformer::miopen {
namespace {

struct Failures {
  std::mutex mutex;
  std::map<std::string, std::unordered_map<RunKey, std::string, RunKey::Hash>> sentences;  // by architecture
};
Failures& failures() {
  static Failures& all = *new Failures;  // torch's threads may outlive static objects
  return all;
}

}  // namespace

const char* find_failure(const RunKey& run, const std::string& arch) {
  Failures& all = failures();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto on = all.sentences.find(arch);
  if (on == all.sentences.end()) return nullptr;
  const auto found = on->second.find(run);
  return found == on->second.end() ? nullptr : found->second.c_str();
}

bool note_failure(const RunKey& run, const std::string& arch, const std::string& sentence) {
  Failures& all = failures();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.sentences[arch].emplace(run, sentence).second;
}

}  // namespace reformer::miopen
