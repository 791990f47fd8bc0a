#include "gpu.h"

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

#include "code_objects.h"
#include "compiled.h"
#include "driver.h"
#include "hip/devices.h"
#include "rtc.h"

namespace reformer::gpu {
namespace {

struct Name {
  std::string target, architecture;
  const GpuSpec* gpu;
};

const Name& known_name(int32_t device) {
  static std::array<std::atomic<const Name*>, 64> known{};
  if (device < 0 || size_t(device) >= known.size())
    throw std::runtime_error("there is no GPU " + std::to_string(device));
  auto& slot = known[size_t(device)];
  if (const Name* found = slot.load(std::memory_order_acquire)) return *found;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!slot.load()) {
    const std::string target = driver().target(device);
    const std::string architecture = target.substr(0, target.find(':'));
    slot.store(new Name{target, architecture, find_gpu(architecture, driver().name(device))});
  }
  return *slot.load();
}

// Kernels that have been launched. Never freed: code objects stay loaded as long as the process lives.
class Functions {
 public:
  Driver::Function get(const Entry& entry, int32_t device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Driver::Function& function = all_[{entry.file, entry.name, entry.arguments, device}];
    if (!function) function = prepare(entry, device);
    return function;
  }

 private:
  // Packaged code may be from a newer CUDA than the driver supports; code from torch's own NVRTC fits the driver.
  Driver::Function prepare(const Entry& entry, int32_t device) {
    const std::string& architecture = gpu::architecture(device);
    std::string refused;
    try {
      if (const auto function = packaged(entry, architecture, device)) return function;
    } catch (const std::runtime_error& error) {
      if (no_compiler(architecture)) throw;
      refused = std::string("; the packaged code was refused: ") + error.what();
    }
    try {
      const std::string& code = compiled_once(entry, architecture);
      const auto function = driver().function(driver().load(code), entry.name, device);
      if (!function) throw std::runtime_error("its source defines no kernel of that name");
      return function;
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(std::string("kernel ") + entry.name + ": " + error.what() + refused);
    }
  }

  // Null if the kernel is not packaged.
  Driver::Function packaged(const Entry& entry, const std::string& architecture, int32_t device) {
    const std::string* code = packaged_code(entry.file, architecture);
    if (!code) return nullptr;
    Driver::Module& module = modules_[{code, device}];
    if (!module) module = driver().load(*code);
    return driver().function(module, entry.name, device);
  }

  std::mutex mutex_;  // guards the members below
  std::map<std::tuple<std::string, std::string, std::string, int32_t>, Driver::Function> all_;
  std::map<std::pair<const std::string*, int32_t>, Driver::Module> modules_;
};

thread_local std::optional<std::set<OwnedEntry>> noted;

Functions& functions() {
  static Functions& all = *new Functions;  // torch's threads may outlive static objects
  return all;
}

}  // namespace

const std::string& architecture(int32_t device) { return known_name(device).architecture; }
Device device(int32_t index) {
  const Name& name = known_name(index);
  Device device{DeviceKind::cuda, Isa::plain, 1, name.architecture, index};
  device.gpu = name.gpu;
  return device;
}
const std::string& target(int32_t device) { return known_name(device).target; }

const char* unavailable(const std::string& architecture) {
  static std::mutex mutex;
  static std::map<std::string, std::string> reasons;  // by architecture; an empty reason: available
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = reasons.find(architecture);
  if (found == reasons.end()) {
    const char* missing = has_packaged_code(architecture) ? nullptr : no_compiler(architecture);
    found =
        reasons.emplace(architecture, missing ? "no kernels for " + architecture + " are packaged, and " + missing : "")
            .first;
  }
  return found->second.empty() ? nullptr : found->second.c_str();
}

void* Kernel::function(int32_t device) const {
  if (device < 0 || size_t(device) >= known_->functions.size()) return functions().get(known_->entry, device);
  std::atomic<void*>& known = known_->functions[size_t(device)];
  void* function = known.load(std::memory_order_acquire);
  if (!function) known.store(function = functions().get(known_->entry, device), std::memory_order_release);
  return function;
}

void begin_noting() { noted.emplace(); }

std::set<OwnedEntry> end_noting() {
  std::set<OwnedEntry> entries = std::move(noted.value());
  noted.reset();
  return entries;
}

void launch(const Kernel& kernel, const Launch& shape, const Queue& queue, const void* arguments, size_t bytes) {
  if (queue.launcher) return queue.launcher(kernel.entry(), shape, arguments, bytes);
  if (noted) {
    const Entry& entry = kernel.entry();
    noted->insert({entry.file, entry.name, entry.arguments, entry.text});
    return;
  }
  driver().launch(kernel.function(queue.device), shape, queue, arguments);
}

TensorMap tensor_map(const void* tensor, std::initializer_list<int64_t> sizes, std::initializer_list<int32_t> box) {
  return driver().tensor_map(tensor, sizes, box);
}

TensorMap windows_map(const void* images, const Windows& windows, int32_t pixels) {
  return driver().windows_map(images, windows, pixels);
}

}  // namespace reformer::gpu
