#include "config.h"

#include <pthread.h>

#include <mutex>
#include <stdexcept>

#include "solver_list.h"

namespace reformer {
namespace {
std::mutex mutex;
Config current{{}, -1, kDefaultWorkspaceLimit};
std::atomic<uint64_t> epoch{1};
// A child process forked while another thread holds the mutex would wait for that thread forever.
[[maybe_unused]] const int at_fork =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
}  // namespace

Config config() {
  const std::lock_guard<std::mutex> lock(mutex);
  return current;
}

void set_config(Config next) {
  const auto count = static_cast<int32_t>(solvers().size());
  if (next.forced < -1 || next.forced >= count) throw std::invalid_argument("there is no such solver to force");
  if (next.workspace_limit < 0) throw std::invalid_argument("the workspace limit must not be negative");
  next.forbidden.resize(solvers().size());
  next.forbidden[0] = false;  // one solver must always apply
  const std::lock_guard<std::mutex> lock(mutex);
  current = std::move(next);
  forget_decisions();
}

uint64_t config_epoch() { return epoch.load(std::memory_order_acquire); }

void forget_decisions() { epoch.fetch_add(1, std::memory_order_release); }

}  // namespace reformer
