#include "devices.h"

#include <stdexcept>

#include "jit/gpu.h"
#include "jit/loaded_library.h"

namespace reformer::miopen {
namespace {

struct Hip {
  int (*count)(int*);
  int (*current)(int*);
  int (*set_current)(int);
  int (*is_capturing)(void* stream, int* status);
};

// Null if HIP is not loaded in this process.
const Hip* hip() {
  static const Hip* const found = []() -> const Hip* {  // never deleted: torch's threads may outlive static objects
    void* const library = gpu::loaded_library("libamdhip64");
    if (!library) return nullptr;
    Hip api{};
    gpu::find_symbol(library, "hipGetDeviceCount", api.count);
    gpu::find_symbol(library, "hipGetDevice", api.current);
    gpu::find_symbol(library, "hipSetDevice", api.set_current);
    gpu::find_symbol(library, "hipStreamIsCapturing", api.is_capturing);
    return new Hip(api);
  }();
  return found;
}

}  // namespace

std::optional<int32_t> device_of(const std::string& arch) {
  int count = 0, current = 0;
  if (!hip() || hip()->count(&count) || hip()->current(&current)) return std::nullopt;
  if (gpu::architecture(current) == arch) return current;
  for (int device = 0; device < count; ++device)
    if (gpu::architecture(device) == arch) return device;
  return std::nullopt;
}

bool is_capturing(void* stream) {
  int status = 0;  // hipStreamCaptureStatusNone
  return hip()->is_capturing(stream, &status) || status;
}

CurrentDevice::CurrentDevice(int32_t device) {
  if (hip()->current(&before_) || (before_ != device && hip()->set_current(device)))
    throw std::runtime_error("HIP does not accept device " + std::to_string(device));
}
CurrentDevice::~CurrentDevice() { hip()->set_current(before_); }

}  // namespace reformer::miopen
