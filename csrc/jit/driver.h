// The GPU's driver: HIP's (driver_hip.cpp) or CUDA's (driver_cuda.cpp), found in the process at run time. Building
// needs no headers of either, and nothing is linked. Device indices are torch's: both follow the driver's reading of
// CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES in this process.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "gpu.h"

namespace reformer::gpu {

// Failures throw std::runtime_error with the driver's message.
class Driver {
 public:
  using Module = void*;
  using Function = void*;

  virtual ~Driver() = default;
  // "sm_90", or "gfx90a:sramecc+:xnack-" with the features of an AMD GPU.
  virtual std::string target(int32_t device) const = 0;

  // The product's name, such as "NVIDIA H100 80GB HBM3"; empty if it is not known.
  virtual std::string name(int32_t) const { return {}; }

  // Loads a code object for `device`, which has to be torch's current device. Also allowed while a stream is being
  // captured into a graph. The bytes must stay at their address.
  virtual Module load(const std::string& code) const = 0;

  // A kernel of the module, with permission to use all the device's shared memory; null if there is none of this name.
  virtual Function function(Module module, const char* name, int32_t device) const = 0;

  // See gpu.h.
  virtual TensorMap tensor_map(const void*, std::initializer_list<int64_t>, std::initializer_list<int32_t>) const {
    throw std::runtime_error("this GPU copies no tiles by itself");
  }
  virtual TensorMap windows_map(const void*, const Windows&, int32_t) const {
    throw std::runtime_error("this GPU copies no windows by itself");
  }

  virtual void launch(Function function, const Launch& shape, const Queue& queue, const void* arguments) const = 0;
};

// Null if the libraries are not installed.
std::unique_ptr<Driver> hip_driver();
std::unique_ptr<Driver> cuda_driver();

// The driver of this process; throws std::runtime_error if there is none. The first call initialises it, as torch does
// at the first use of a GPU; after that, neither works in forked processes.
const Driver& driver();

}  // namespace reformer::gpu
