// Numbers of the data types in memory, as doubles.
#pragma once

#include <cstdint>

namespace stub {

double load(int type, const void* data, int64_t at);
void store(int type, void* data, int64_t at, double value);  // rounds to nearest even

}  // namespace stub
