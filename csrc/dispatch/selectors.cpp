#include "selectors.h"

#include <map>
#include <mutex>
#include <stdexcept>

#include "config.h"

namespace reformer {
namespace {
std::mutex mutex;
std::map<std::string, std::shared_ptr<const Selector>, std::less<>> selectors[kDecisions];  // indexed by Decides
}  // namespace

void set_selector(const std::string& arch, Decides decides, std::shared_ptr<const Selector> selector) {
  if (arch != "cpu" && Device::parse(arch).arch != arch)
    throw std::invalid_argument("\"" + arch +
                                "\" is no architecture that a selector is for: give cpu, gfxNNN or sm_NN");
  {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& mine = selectors[size_t(decides)];
    if (selector)
      mine[arch].swap(selector);  // the old selector is freed outside the lock
    else
      mine.erase(arch);
  }
  forget_decisions();
}

std::shared_ptr<const Selector> find_selector(const Device& device, Decides decides) {
  const std::string_view arch = device.kind == DeviceKind::cpu ? std::string_view("cpu") : device.arch;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto& mine = selectors[size_t(decides)];
  const auto found = mine.find(arch);
  return found == mine.end() ? nullptr : found->second;
}

}  // namespace reformer
