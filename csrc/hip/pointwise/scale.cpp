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

Planned<ScalePlan> plan_scale(DType type, DType factor, int64_t count, int64_t alignment, const std::string& arch) {
  if (const char* why = gpu::unavailable(arch)) return why;
  const int most = int(16 / element_size(type));
  const int elements = alignment % 16 || count % most ? 1 : most;
  ScalePlan plan;
  plan.kernel = kernel_of(kernel_type(type), kernel_type(factor), elements);
  if (!plan.kernel) return "it takes fp32 and bf16";
  const int64_t each = int64_t{kScaleThreads} * elements;
  plan.launch.blocks_x = uint32_t(std::clamp<int64_t>((count + each - 1) / each, 1, int64_t{8} * usual_units(arch)));
  plan.launch.threads = kScaleThreads;
  plan.launch.pdl = true;
  return plan;
}

}  // namespace reformer
