#include "scale.h"

#include <algorithm>
#include <string>

#include "hip/devices.h"
#include "hip/typed_kernel.h"

namespace reformer {
namespace {

const gpu::Kernel* kernel_of(const char* type, const char* factor, int elements) {
  static const TypedKernel kernels[] = {
#define X(T, Factor, count) \
  {#T, #Factor, count,      \
   gpu::Kernel({"pointwise/scale", "scale_" #T "_" #Factor "_" #count, #T ", " #Factor ", " #count})},
#include "scale.inc"
#undef X
  };
  return find_kernel(kernels, type, factor, elements);
}

}  // namespace

Planned<ScaleConfig> configure_scale(DType type, DType factor, int64_t count, int64_t alignment,
                                     const std::string& arch) {
  if (const char* why = gpu::unavailable(arch)) return why;
  const int most = int(16 / element_size(type));
  const int elements = alignment % 16 || count % most ? 1 : most;
  ScaleConfig config;
  config.kernel = kernel_of(kernel_type(type), kernel_type(factor), elements);
  if (!config.kernel) return "it supports fp32 and bf16 only";
  const int64_t each = int64_t{kScaleThreads} * elements;
  config.launch.blocks_x = uint32_t(std::clamp<int64_t>((count + each - 1) / each, 1, int64_t{8} * usual_units(arch)));
  config.launch.threads = kScaleThreads;
  config.launch.pdl = true;
  return config;
}

}  // namespace reformer
