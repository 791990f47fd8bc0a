#include "hip.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstring>

#include "calls.h"

namespace stub::hip {
namespace {

// The fake HIP, also where it was loaded with RTLD_LOCAL.
void* library() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        if (!info->dlpi_name || !std::strstr(info->dlpi_name, "libamdhip64")) return 0;
        *static_cast<std::string*>(data) = info->dlpi_name;
        return 1;
      },
      &path);
  return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
}

template <class... Arguments>
void call(const char* function, Arguments... arguments) {
  static void* const hip = library();
  void* const symbol = hip ? dlsym(hip, function) : nullptr;
  if (!symbol) misuse(std::string("no HIP with ") + function + " is in the process");
  const int error = reinterpret_cast<int (*)(Arguments...)>(symbol)(arguments...);
  if (error) misuse(std::string(function) + " answers " + std::to_string(error));
}

}  // namespace

int current_device() {
  int device = -1;
  call("hipGetDevice", &device);
  return device;
}

void set_current_device(int device) { call("hipSetDevice", device); }

bool is_capturing(void* stream) {
  int status = -1;
  call("hipStreamIsCapturing", stream, &status);
  return status != 0;
}

std::string architecture(int device) {
  std::array<char, 4096> properties{};
  call("hipGetDevicePropertiesR0600", static_cast<void*>(properties.data()), device);
  for (size_t at = 256; at + 3 < properties.size(); ++at)
    if (!std::memcmp(&properties[at], "gfx", 3)) {
      const std::string name = &properties[at];
      return name.substr(0, name.find(':'));
    }
  misuse("the device's properties name no architecture");
}

}  // namespace stub::hip
