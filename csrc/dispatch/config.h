// User-configurable options of the choice: one process-wide value, set by torch_reformer/runtime/config.py.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace reformer {

// Where a program after a convolution runs if the convolution's kernel could run it: as the choice thinks best, or
// always one way.
enum class Epilogues : int8_t { chosen, fused, separate };

struct Config {
  std::vector<bool> forbidden;  // for each of solvers(): it may not be chosen; solvers beyond its end may
  int32_t forced = -1;          // index in solvers() of the one to use wherever it applies, or -1
  int64_t workspace_limit = 0;  // bytes
  bool deterministic_only = false;
  bool allow_reduced_accuracy = false;  // solvers with more than twice PyTorch's error may be chosen
  Epilogues epilogues = Epilogues::chosen;
};

constexpr int64_t kDefaultWorkspaceLimit = int64_t{256} << 20;

Config config();
// Replaces the configuration and invalidates every thread's decision cache. The first solver can't be forbidden. Throws
// std::invalid_argument.
void set_config(Config config);
// Changes with every set_config and forget_decisions; decisions of an earlier epoch are stale.
uint64_t config_epoch();
// Invalidates all decisions. To be called when anything else that decisions depend on has changed.
void forget_decisions();

}  // namespace reformer
