// For the emulator's tests: how gradients of tables with few rows are launched.
#include "hip/embedding/few_rows.cpp"

#include <cstring>

using namespace reformer;

namespace reformer::gpu {
const char* unavailable(const std::string&) { return nullptr; }
}  // namespace reformer::gpu

extern "C" int64_t bytes() { return sizeof(FewRowsArgs); }
extern "C" int64_t add_bytes() { return sizeof(AddTablesArgs); }

namespace {

void describe(const gpu::Kernel& kernel, const gpu::Launch& launch, uint32_t* shape, char* name) {
  shape[0] = launch.blocks_x, shape[1] = launch.blocks_y, shape[2] = launch.threads, shape[3] = launch.shared_bytes;
  std::strcpy(name, kernel.entry().name);
}

}  // namespace

// sizes: entries, rows and columns, the strides of entries and columns, and the padding. pointers: ids, grad and
// result. parts: memory for `most` floats. Each output is for two kernels; the second name is empty if there is one.
// Returns a sentence, or null.
extern "C" const char* plan(const char* arch, int type, int wide, int adds, const int64_t* sizes, void* const* pointers,
                            float* parts, int64_t most, void* arguments, void* add_arguments, uint32_t* shape,
                            uint32_t* add_shape, char* name, char* add_name) {
  const auto [planned, reason] =
      configure_few_rows(DType(type), wide, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], arch);
  if (!planned) return reason;
  if (planned->parts_floats > most) return "too little memory for the parts";
  FewRowsArgs args = planned->args;
  AddTablesArgs add = planned->add;
  args.ids = pointers[0], args.grad = pointers[1], args.to = add.to = pointers[2];
  args.padding = sizes[5], args.adds = add.adds = adds;
  if (planned->add_kernel) args.parts = parts, add.parts = parts;
  std::memcpy(arguments, &args, sizeof args);
  std::memcpy(add_arguments, &add, sizeof add);
  describe(*planned->kernel, planned->launch, shape, name);
  *add_name = 0;
  if (planned->add_kernel) describe(*planned->add_kernel, planned->add_launch, add_shape, add_name);
  return nullptr;
}
