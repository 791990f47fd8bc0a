// For the emulator's tests: how a copy in another order is launched.
#include "hip/copy/transpose.cpp"

#include <cstring>

using namespace reformer;

extern "C" int64_t bytes() { return sizeof(TransposeArgs); }

// Returns a sentence, or null.
extern "C" const char* plan(const int64_t* sizes, const int64_t* strides, int64_t dimensions, const void* from,
                            void* to, int size, void* arguments, uint32_t* shape, char* name) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(from);
  const auto planned = configure_transpose(sizes, strides, dimensions, size, int64_t(address & -address));
  if (!planned.plan) return planned.reason;
  TransposeArgs args = planned.plan->args;
  args.from = from, args.to = to;
  std::memcpy(arguments, &args, sizeof args);
  const gpu::Launch& launch = planned.plan->launch;
  shape[0] = launch.blocks_x, shape[1] = launch.blocks_y, shape[2] = launch.blocks_z, shape[3] = launch.threads;
  std::strcpy(name, planned.plan->kernel->entry().name);
  return nullptr;
}
