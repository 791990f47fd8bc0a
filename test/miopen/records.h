// What was done, for tests to read.
#pragma once

#include <cstdint>
#include <string>

namespace stub {

void record_compilation(uint64_t id);
void record_run(uint64_t id, const std::string& key, void* stream);

int64_t compilations(uint64_t id);
int64_t runs(uint64_t id);
std::string last_run();  // KEY=ID
void* last_stream();
void reset_records();

}  // namespace stub
