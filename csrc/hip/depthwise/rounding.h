// Rounded quotients and multiples.
#pragma once

#include <cstdint>

namespace reformer {

inline int32_t up(int32_t value, int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }
inline int32_t parts(int32_t value, int32_t size) { return (value + size - 1) / size; }

}  // namespace reformer
