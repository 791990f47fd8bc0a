// Plans that were made before: to look for the best one takes longer than to launch it.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>

#include "conv/problem.h"
#include "device.h"

namespace reformer {

template <class Plan>
class Memo {
 public:
  // What make() returns for the problem on a device of this architecture.
  template <class Make>
  Plan get(const ConvProblem& problem, const Device& device, Make make) const {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = plans_.find({problem, device.arch});
      if (found != plans_.end()) return found->second;
    }
    Plan plan = make();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (plans_.size() >= kMost) plans_.clear();  // sizes that never come again
    plans_.emplace(Key{problem, device.arch}, plan);
    return plan;
  }

 private:
  static constexpr size_t kMost = 4096;
  struct Key {
    ConvProblem problem;
    std::string arch;
    bool operator==(const Key& other) const { return problem == other.problem && arch == other.arch; }
  };
  struct Hash {
    size_t operator()(const Key& key) const { return hash(key.problem); }
  };
  mutable std::mutex mutex_;
  mutable std::unordered_map<Key, Plan, Hash> plans_;
};

}  // namespace reformer
