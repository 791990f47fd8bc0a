// Objects referred to by numbers, where pointers can't be passed. Numbers are never reused.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace reformer {

// Thread-safe. Create it with new and never delete it: torch's threads may outlive static objects.
template <class T>
class Numbered {
 public:
  int64_t add(T thing) {
    const std::lock_guard<std::mutex> lock(mutex_);
    things_.emplace(next_number_, std::move(thing));
    return next_number_++;
  }

  std::optional<T> at(int64_t number) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = things_.find(number);
    return found == things_.end() ? std::nullopt : std::optional<T>(found->second);
  }

  // Removes the object; its number becomes invalid. The caller destroys it, outside the lock.
  std::optional<T> take(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = things_.find(number);
    if (found == things_.end()) return std::nullopt;
    std::optional<T> thing(std::move(found->second));
    things_.erase(found);
    return thing;
  }

  int64_t count() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return int64_t(things_.size());
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, T> things_;
  int64_t next_number_ = 0;
};

}  // namespace reformer
