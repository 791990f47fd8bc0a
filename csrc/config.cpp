#include "config.h"

#include <mutex>
#include <stdexcept>

#include "solver.h"

namespace reformer {
namespace {
std::mutex mutex;
Config current{0, -1, kDefaultWorkspaceLimit, false, false};
std::atomic<uint64_t> epoch{1};
}  // namespace

Config config() {
  const std::lock_guard<std::mutex> lock(mutex);
  return current;
}

void set_config(const Config& next) {
  const auto count = static_cast<int32_t>(solvers().size());
  if (next.forced < -1 || next.forced >= count) throw std::invalid_argument("there is no such solver to force");
  if (next.workspace_limit < 0) throw std::invalid_argument("the workspace limit must not be negative");
  const std::lock_guard<std::mutex> lock(mutex);
  current = next;
  current.forbidden &= ~uint64_t{1};  // something must always apply
  forget_decisions();
}

uint64_t config_epoch() { return epoch.load(std::memory_order_acquire); }

void forget_decisions() { epoch.fetch_add(1, std::memory_order_release); }

}  // namespace reformer
