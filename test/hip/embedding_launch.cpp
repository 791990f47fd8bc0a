// For the emulator's tests: how gradients of tables are launched.
#include "hip/embedding/embedding.cpp"

using namespace reformer;

namespace reformer::gpu {
const char* unavailable(const std::string&) { return nullptr; }
}  // namespace reformer::gpu

// found: blocks along x and y, groups, columns of a block. Returns a sentence, or null.
extern "C" const char* configure(const char* arch, int type, int wide, const int64_t* sizes, int64_t* found) {
  const auto [planned, reason] =
      configure_embedding_grad(DType(type), wide, sizes[0], sizes[1], sizes[2], sizes[3], arch);
  if (!planned) return reason;
  found[0] = planned->launch.blocks_x, found[1] = planned->launch.blocks_y;
  found[2] = planned->args.groups, found[3] = planned->args.columns_each;
  return nullptr;
}
