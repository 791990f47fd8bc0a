#include "scratch.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace reformer {

void* thread_scratch(int64_t bytes) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<void, Free> buffer;
  thread_local int64_t size = 0;
  if (bytes > size) {
    size = 0;
    buffer.reset();
    const int64_t rounded = (bytes + 4095) / 4096 * 4096;
    buffer.reset(std::aligned_alloc(64, rounded));
    if (!buffer) throw std::bad_alloc();
    size = rounded;
  }
  return buffer.get();
}

}  // namespace reformer
