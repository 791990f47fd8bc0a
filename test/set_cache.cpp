// csrc/set_cache.h: what is remembered is found, is bounded under ever-new keys, and is freed when it is forgotten.
#include "set_cache.h"

#include <cstdio>

using namespace reformer;

namespace {

int failures = 0;
void expect(bool is, const char* what) {
  if (is) return;
  std::printf("%s\n", what);
  ++failures;
}

uint64_t hash_of(uint64_t key) { return key * 0x9e3779b97f4a7c15u; }

}  // namespace

int main() {
  SetCache<uint64_t, std::shared_ptr<uint64_t>> cache;
  const std::weak_ptr<uint64_t> first = cache.remember(0, hash_of(0), std::make_shared<uint64_t>(0));
  expect(!cache.find(1, hash_of(0)), "a key of the same hash is another one");
  expect(**cache.find(0, hash_of(0)) == 0 && !first.expired(), "a value is remembered");

  constexpr uint64_t kKeys = 100000;
  for (uint64_t key = 1; key < kKeys; ++key) cache.remember(key, hash_of(key), std::make_shared<uint64_t>(key));
  expect(first.expired(), "a value that is displaced is freed");
  size_t found = 0;
  for (uint64_t key = 0; key < kKeys; ++key)
    if (const auto* value = cache.find(key, hash_of(key))) {
      expect(**value == key, "the value is the key's own");
      ++found;
    }
  expect(found > 1000 && found < 4000, "the table is bounded");

  const std::weak_ptr<uint64_t> last = *cache.find(kKeys - 1, hash_of(kKeys - 1));
  cache.forget();
  expect(last.expired() && !cache.find(kKeys - 1, hash_of(kKeys - 1)), "what is forgotten is freed");
  return failures;
}
