// A thread's bounded cache of results that depend only on a key. It has sets of four entries and allocates at the first
// use. Networks with a few hundred problems fit with no evictions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace reformer {

// hash: a function of the key. Key and Value are default-constructible.
template <class Key, class Value>
class SetCache {
 public:
  // Null if it is not cached. The pointer is valid until the next remember() or forget().
  const Value* find(const Key& key, uint64_t hash) const {
    const Set& set = sets_[hash % kSets];
    for (size_t i = 0; i < kWays; ++i)
      if (set.tags[i] == tag_of(hash) && set.entries[i].key == key) return &set.entries[i].value;
    return nullptr;
  }

  // The key must be one that find() does not return.
  const Value& remember(const Key& key, uint64_t hash, Value value) {
    Set& set = sets_[hash % kSets];
    const size_t place = set.next++ % kWays;
    set.tags[place] = tag_of(hash);
    set.entries[place] = {key, std::move(value)};
    return set.entries[place].value;
  }

  void forget() {
    for (size_t i = 0; i < kSets; ++i)
      for (size_t place = 0; place < kWays; ++place)
        if (std::exchange(sets_[i].tags[place], 0)) sets_[i].entries[place] = {};
  }

 private:
  static constexpr size_t kSets = 512, kWays = 4;
  struct Entry {
    Key key;
    Value value;
  };
  struct Set {
    uint32_t tags[kWays] = {};  // of the entries: bits of the hash, never 0; 0: no entry
    uint32_t next = 0;          // the entry to replace next
    Entry entries[kWays];
  };
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) | 1; }

  std::unique_ptr<Set[]> sets_{new Set[kSets]};
};

}  // namespace reformer
