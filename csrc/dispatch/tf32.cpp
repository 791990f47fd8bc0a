#include "tf32.h"

#include <atomic>

namespace reformer {
namespace {
std::atomic<Tf32Reader> reader{nullptr};
}  // namespace

void set_tf32_reader(Tf32Reader given) { reader = given; }

bool allows_tf32(const Device& device) {
  const Tf32Reader read = device.is_nvidia() ? reader.load() : nullptr;
  return read && read();
}

}  // namespace reformer
