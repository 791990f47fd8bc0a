#include "driver.h"

#include <stdexcept>

namespace reformer::gpu {

const Driver& driver() {
  // torch for ROCm has already loaded HIP's library. CUDA's may be installed but not yet loaded.
  static const std::unique_ptr<Driver> found = [] {
    auto hip = hip_driver();
    return hip ? std::move(hip) : cuda_driver();
  }();
  if (!found) throw std::runtime_error("there is no GPU driver: neither libamdhip64 in the process nor libcuda.so.1");
  return *found;
}

}  // namespace reformer::gpu
