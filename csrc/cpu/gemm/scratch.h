// A thread's packing buffer, reused by later calls, because fresh pages cost more than packing into them.
#pragma once

#include <cstdint>

namespace reformer {

// At least `bytes` bytes, 64-byte aligned, owned by the calling thread until its next call.
void* thread_scratch(int64_t bytes);

}  // namespace reformer
