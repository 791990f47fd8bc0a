// HIP's notion of devices and of capture, beside the driver's (jit/driver.h), which launches kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace reformer::miopen {

// The current device if it is of this architecture, or the first that is; none if this process has none.
std::optional<int32_t> device_of(const std::string& arch);

// True if a graph is being captured from the stream.
bool is_capturing(void* stream);

// Makes a device the thread's current one, and afterwards the one that was: MIOpen changes it, too.
class CurrentDevice {
 public:
  explicit CurrentDevice(int32_t device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace reformer::miopen
