// Devices and stream capture as HIP sees them, in addition to the driver (jit/driver.h), which launches kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace reformer::miopen {

// The current device if it has this architecture, else the first one that has; nullopt if there is none.
std::optional<int32_t> device_of(const std::string& arch);

// True if a graph is being captured from the stream.
bool is_capturing(void* stream);

// Sets the thread's current device and restores the former one at its destruction, also if MIOpen changes it.
class CurrentDevice {
 public:
  explicit CurrentDevice(int32_t device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace reformer::miopen
