#include "gpu.h"

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "code_objects.h"
#include "compiled.h"
#include "driver.h"
#include "rtc.h"

namespace reformer::gpu {
namespace {

const std::string& known_architecture(int32_t device) {
  static std::array<std::atomic<const std::string*>, 64> known{};
  if (device < 0 || size_t(device) >= known.size())
    throw std::runtime_error("there is no GPU " + std::to_string(device));
  auto& slot = known[size_t(device)];
  if (const std::string* found = slot.load(std::memory_order_acquire)) return *found;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!slot.load()) slot.store(new std::string(driver().architecture(device)));
  return *slot.load();
}

// A kernel that is ready to run on a device. Never freed: code objects stay loaded as long as the process lives.
struct Ready {
  std::string file, name, arguments;
  int32_t device;
  Driver::Function function;

  bool is(const Entry& entry, int32_t on) const {
    return device == on && name == entry.name && file == entry.file && arguments == entry.arguments;
  }
};

// The kernels that were launched before, found without a lock. Entries are mostly constants, so the address of the name
// leads to the slot; what is found there is compared as text, since that need not be so.
class ReadyTable {
 public:
  const Ready* find(const Entry& entry, int32_t device) const {
    for (size_t i = 0, slot = first_slot(entry, device); i < kProbes; ++i, ++slot) {
      const Ready* ready = slots_[slot % kSlots].load(std::memory_order_acquire);
      if (!ready) return nullptr;
      if (ready->is(entry, device)) return ready;
    }
    return nullptr;
  }

  // One thread at a time. When there is no room it is left out: it is then found under the lock.
  void insert(const Entry& entry, int32_t device, const Ready* ready) {
    for (size_t i = 0, slot = first_slot(entry, device); i < kProbes; ++i, ++slot) {
      if (slots_[slot % kSlots].load(std::memory_order_relaxed)) continue;
      return slots_[slot % kSlots].store(ready, std::memory_order_release);
    }
  }

 private:
  static constexpr size_t kSlots = 4096, kProbes = 8;

  static size_t first_slot(const Entry& entry, int32_t device) {
    const auto key = uint64_t(reinterpret_cast<uintptr_t>(entry.name)) + uint64_t(device);
    return size_t(key * 0x9e3779b97f4a7c15u >> 52);
  }

  std::array<std::atomic<const Ready*>, kSlots> slots_{};
};

class Kernels {
 public:
  const Ready& get(const Entry& entry, int32_t device) {
    if (const Ready* ready = table_.find(entry, device)) return *ready;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto key =
        std::make_tuple(std::string(entry.file), std::string(entry.name), std::string(entry.arguments), device);
    auto found = all_.find(key);
    if (found == all_.end())
      found = all_.emplace(key, Ready{entry.file, entry.name, entry.arguments, device, prepare(entry, device)}).first;
    table_.insert(entry, device, &found->second);
    return found->second;
  }

 private:
  // Packaged code may be of a newer CUDA than the driver takes: what torch's own NVRTC makes fits it.
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
      compiled_.push_back(compile_entry(entry, architecture).code);
      const auto function = driver().function(driver().load(compiled_.back()), entry.name, device);
      if (!function) throw std::runtime_error("its source defines no kernel of that name");
      return function;
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(std::string("kernel ") + entry.name + ": " + error.what() + refused);
    }
  }

  // Null if it is not packaged.
  Driver::Function packaged(const Entry& entry, const std::string& architecture, int32_t device) {
    const std::string* code = packaged_code(entry.file, architecture);
    if (!code) return nullptr;
    Driver::Module& module = modules_[{code, device}];
    if (!module) module = driver().load(*code);
    return driver().function(module, entry.name, device);
  }

  ReadyTable table_;
  std::mutex mutex_;  // guards what follows, and insertions
  std::map<std::tuple<std::string, std::string, std::string, int32_t>, Ready> all_;
  std::map<std::pair<const std::string*, int32_t>, Driver::Module> modules_;
  std::deque<std::string> compiled_;  // modules may point to it
};

Kernels& kernels() {
  static Kernels& all = *new Kernels;  // torch's threads may outlive static objects
  return all;
}

}  // namespace

const std::string& architecture(int32_t device) { return known_architecture(device); }

const char* unavailable(const std::string& architecture) {
  static std::mutex mutex;
  static std::map<std::string, std::string> reasons;  // by architecture; empty: available
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

void launch(const Entry& entry, const Launch& shape, const Queue& queue, const void* arguments, size_t bytes) {
  if (queue.launcher) return queue.launcher(entry, shape, arguments, bytes);
  driver().launch(kernels().get(entry, queue.device).function, shape, queue, arguments);
}

TensorMap tensor_map(const void* tensor, std::initializer_list<int64_t> sizes, std::initializer_list<int32_t> box) {
  return driver().tensor_map(tensor, sizes, box);
}

TensorMap windows_map(const void* images, const Windows& windows, int32_t pixels) {
  return driver().windows_map(images, windows, pixels);
}

}  // namespace reformer::gpu
