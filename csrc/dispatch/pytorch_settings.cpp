#include "pytorch_settings.h"

#include <atomic>

namespace reformer {
namespace {

std::atomic<SettingReader> tf32{nullptr}, deterministic{nullptr};

bool is_set(const std::atomic<SettingReader>& reader) {
  const SettingReader read = reader.load();
  return read && read();
}

}  // namespace

void set_tf32_reader(SettingReader reader) { tf32 = reader; }
void set_deterministic_reader(SettingReader reader) { deterministic = reader; }

bool allows_tf32(const Device& device) { return device.is_nvidia() && is_set(tf32); }
bool asks_for_determinism(const Device& device) { return device.is_amd() && is_set(deterministic); }

}  // namespace reformer
