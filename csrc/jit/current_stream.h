// PyTorch's current stream of a GPU, for code that needs it before there is work for it. Only code compiled with torch
// can query it, so that code registers a function.
#pragma once

#include <cstdint>

namespace reformer::gpu {

using StreamReader = void* (*)(int32_t device);
void set_stream_reader(StreamReader reader);

// Null, the default stream, as long as no function is registered.
void* current_stream(int32_t device);

}  // namespace reformer::gpu
