// PyTorch's current stream of a GPU, for whoever has to know it before there is work for it. Only what is compiled with
// torch sees it, and gives the function.
#pragma once

#include <cstdint>

namespace reformer::gpu {

using StreamReader = void* (*)(int32_t device);
void set_stream_reader(StreamReader reader);

// Null, the default stream, as long as there is no such function.
void* current_stream(int32_t device);

}  // namespace reformer::gpu
