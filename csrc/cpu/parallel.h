// Threads of PyTorch's own pool, so that torch.set_num_threads and fork behave as users expect.
#pragma once

#include <cstdint>

namespace reformer {

using RangeFunction = void (*)(int64_t begin, int64_t end, void* context);
void parallel_range(int64_t begin, int64_t end, int64_t grain, RangeFunction function, void* context);
int32_t max_threads();

// Calls body(begin, end) for parts of [0, count) with at least `grain` items each, on PyTorch's threads. Every thread
// gets one contiguous part, and the split depends only on count, grain and the number of threads.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  parallel_range(
      0, count, grain,
      [](int64_t begin, int64_t end, void* context) { (*static_cast<const Body*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace reformer
