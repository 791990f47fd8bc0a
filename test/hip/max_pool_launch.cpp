// For the emulator's tests: how max pooling is launched.
#include "hip/pooling/max_pool.cpp"

#include <cstring>

using namespace reformer;

namespace reformer::gpu {
const char* unavailable(const std::string&) { return nullptr; }
}  // namespace reformer::gpu

extern "C" int64_t bytes() { return sizeof(MaxPoolArgs); }
extern "C" int64_t place_of_images_each() { return offsetof(MaxPoolArgs, images_each); }

// rows, columns: the members of PoolSizes. pointers: of MaxPoolArgs. Returns a sentence, or null.
extern "C" const char* plan(int is_forward, int type, int layout, int64_t images, int64_t channels, const int64_t* rows,
                            const int64_t* columns, void* const* pointers, void* arguments, uint32_t* shape,
                            char* name) {
  const auto sizes = [](const int64_t* n) { return PoolSizes{n[0], n[1], n[2], n[3], n[4], n[5]}; };
  const auto planned = configure_max_pool(is_forward, DType(type), Layout(layout), images, channels, sizes(rows),
                                          sizes(columns), "sm_90");
  if (!planned.plan) return planned.reason;
  MaxPoolArgs args = planned.plan->args;
  args.from = pointers[0], args.places = pointers[1], args.to = pointers[2];
  std::memcpy(arguments, &args, sizeof args);
  const gpu::Launch& launch = planned.plan->launch;
  shape[0] = launch.blocks_x, shape[1] = launch.blocks_y, shape[2] = launch.blocks_z, shape[3] = launch.threads;
  std::strcpy(name, planned.plan->kernel->entry().name);
  return nullptr;
}
