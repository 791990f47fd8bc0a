// For the emulator's tests: how many casts are launched.
#include "hip/copy/casts.cpp"

#include <cstring>

using namespace reformer;

extern "C" int64_t bytes() { return sizeof(CastsArgs); }

// Writes each launch's arguments and its number of blocks, as far as there is room for them, and returns how many
// launches there are; -1 if there is no kernel for these types, whose name is written, too.
extern "C" int64_t plan(const void* const* from, void* const* to, const int64_t* counts, int64_t casts, int from_type,
                        int to_type, CastsArgs* arguments, uint32_t* blocks, int64_t room, char* name) {
  const gpu::Kernel* kernel = casts_kernel(DType(from_type), DType(to_type));
  if (!kernel) return -1;
  std::strcpy(name, kernel->entry().name);
  std::vector<Cast> all;
  for (int64_t i = 0; i < casts; ++i) all.push_back({from[i], to[i], counts[i]});
  const std::vector<CastsLaunch> launches = plan_casts(all, DType(from_type), DType(to_type));
  for (size_t i = 0; i < std::min(launches.size(), size_t(room)); ++i)
    arguments[i] = launches[i].args, blocks[i] = launches[i].launch.blocks_x;
  return int64_t(launches.size());
}
