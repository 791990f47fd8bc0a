#include "scale.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "hip/gpu_model.h"

namespace reformer {
namespace {

struct OneKernel {
  const char *type, *factor;
  int elements;
  gpu::Kernel kernel;
};

const OneKernel* kernel_of(const char* type, const char* factor, int elements) {
  static const OneKernel kernels[] = {
#define X(T, Factor, count) \
  {#T, #Factor, count, gpu::Kernel({"scale", "scale_" #T "_" #Factor "_" #count, #T ", " #Factor ", " #count})},
#include "hip/kernels/scale.inc"
#undef X
  };
  const auto found = std::find_if(std::begin(kernels), std::end(kernels), [&](const OneKernel& kernel) {
    return !std::strcmp(kernel.type, type) && !std::strcmp(kernel.factor, factor) && kernel.elements == elements;
  });
  return found == std::end(kernels) ? nullptr : found;
}

}  // namespace

Planned<ScalePlan> plan_scale(DType type, DType factor, int64_t count, int64_t alignment, const std::string& arch) {
  if (const char* why = gpu::unavailable(arch)) return why;
  constexpr const char* kTypes[] = {"fp32", "fp64", "fp16", "bf16"};
  const int most = int(16 / element_size(type));
  const int elements = alignment % 16 || count % most ? 1 : most;
  const OneKernel* const found = kernel_of(kTypes[size_t(type)], kTypes[size_t(factor)], elements);
  if (!found) return "it takes fp32 and bf16";
  ScalePlan plan;
  const int64_t each = int64_t{kScaleThreads} * elements;
  plan.launch.blocks_x = uint32_t(std::clamp<int64_t>((count + each - 1) / each, 1, int64_t{8} * usual_units(arch)));
  plan.launch.threads = kScaleThreads;
  plan.launch.pdl = true;
  plan.kernel = &found->kernel;
  return plan;
}

}  // namespace reformer
