#include <array>
#include <stdexcept>

#include "driver.h"
#include "loaded_library.h"
#include "relaxed_capture.h"

namespace reformer::gpu {
namespace {

// From hip_runtime_api.h, so that building doesn't need it.
constexpr int kNotFound = 500;

// ROCm 6.0 and newer.
struct Api {
  int (*init)(unsigned);
  const char* (*error_string)(int);
  int (*device_properties)(void*, int);
  int (*exchange_capture_mode)(int*);
  int (*load_module)(void**, const void*);
  int (*module_function)(void**, void*, const char*);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
};

class HipDriver final : public Driver {
 public:
  explicit HipDriver(void* library) {
    find_symbol(library, "hipInit", api_.init);
    find_symbol(library, "hipGetErrorString", api_.error_string);
    find_symbol(library, "hipGetDevicePropertiesR0600", api_.device_properties);
    find_symbol(library, "hipThreadExchangeStreamCaptureMode", api_.exchange_capture_mode);
    find_symbol(library, "hipModuleLoadData", api_.load_module);
    find_symbol(library, "hipModuleGetFunction", api_.module_function);
    find_symbol(library, "hipModuleLaunchKernel", api_.launch);
    check(api_.init(0), "hipInit");
  }

  // The architecture is not an attribute but a member of the device's properties. Without HIP's header its offset is
  // unknown, so the text is searched for; the layout can't change, as it is tied to the function's name (R0600). The
  // text is "gfx942:sramecc+:xnack-", and comes long after the 256 bytes of the product name; no other member is text.
  std::string target(int32_t device) const override {
    std::array<char, 8192> properties{};  // 1472 are used
    check(api_.device_properties(properties.data(), device), "hipGetDeviceProperties");
    const std::string_view bytes(properties.data(), properties.size() - 1);
    const size_t found = bytes.find("gfx", 256);
    if (found == std::string_view::npos) throw std::runtime_error("HIP: the device's properties name no architecture");
    return properties.data() + found;
  }

  Module load(const std::string& code) const override {
    const RelaxedCapture relaxed(api_.exchange_capture_mode);
    void* module = nullptr;
    check(api_.load_module(&module, code.data()), "hipModuleLoadData");
    return module;
  }

  // All 64 KiB of shared memory are available without setting an attribute.
  Function function(Module module, const char* name, int32_t) const override {
    const RelaxedCapture relaxed(api_.exchange_capture_mode);
    void* function = nullptr;
    const int error = api_.module_function(&function, module, name);
    if (error == kNotFound) return nullptr;
    check(error, "hipModuleGetFunction");
    return function;
  }

  void launch(Function function, const Launch& shape, const Queue& queue, const void* arguments) const override {
    void* parameters[] = {const_cast<void*>(arguments)};
    check(api_.launch(function, shape.blocks_x, shape.blocks_y, shape.blocks_z, shape.threads, 1, 1, shape.shared_bytes,
                      queue.stream, parameters, nullptr),
          "hipModuleLaunchKernel");
  }

 private:
  void check(int error, const char* call) const {
    if (error)
      throw std::runtime_error(std::string("HIP: ") + call + ": " + api_.error_string(error) + " (" +
                               std::to_string(error) + ")");
  }

  Api api_;
};

}  // namespace

std::unique_ptr<Driver> hip_driver() {
  void* library = loaded_library("libamdhip64");
  return library ? std::make_unique<HipDriver>(library) : nullptr;
}

}  // namespace reformer::gpu
