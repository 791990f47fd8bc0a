#include "casts.h"

#include <algorithm>

#include "hip/typed_kernel.h"

namespace reformer {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 30;  // per entry; larger tensors take several entries

}  // namespace

const gpu::Kernel* casts_kernel(DType from, DType to) {
  static const TypedKernel kernels[] = {
#define X(From, To) {#From, #To, kCastVector, gpu::Kernel({"copy/casts", "casts_" #From "_" #To, #From ", " #To})},
#include "casts.inc"
#undef X
  };
  return find_kernel(kernels, kernel_type(from), kernel_type(to), kCastVector);
}

std::vector<CastsLaunch> plan_casts(const std::vector<Cast>& casts, DType from, DType to) {
  std::vector<CastsLaunch> launches;
  for (const Cast& cast : casts)
    for (int64_t begin = 0; begin < cast.count; begin += kMostElements) {
      if (launches.empty() || launches.back().args.casts == kCastsMost) {
        launches.emplace_back();
        gpu::Launch& launch = launches.back().launch;
        launch.blocks_x = 0, launch.threads = kCastThreads, launch.pdl = true;
      }
      auto& [args, launch] = launches.back();
      const int own = args.casts++;
      const int64_t count = std::min(cast.count - begin, kMostElements);
      args.from[own] = cast.from ? static_cast<const char*>(cast.from) + begin * element_size(from) : nullptr;
      args.to[own] = static_cast<char*>(cast.to) + begin * element_size(to);
      args.count[own] = unsigned(count);
      args.first[own] = int(launch.blocks_x);
      launch.blocks_x += uint32_t((count + kCastBlock - 1) / kCastBlock);
    }
  return launches;
}

}  // namespace reformer
