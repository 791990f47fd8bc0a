// Options of the choice that the user may set. One process-wide value; torch_reformer/runtime/config.py sets it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace reformer {

// Where a program behind a convolution runs, if its kernel could: as the choice thinks best, or always one way.
enum class Epilogues : int8_t { chosen, fused, separate };

struct Config {
  std::vector<bool> forbidden;  // of each of solvers(): it may not be chosen; where it ends, they may
  int32_t forced = -1;          // index in solvers() of the one to use wherever it applies, or -1
  int64_t workspace_limit = 0;  // bytes
  bool deterministic_only = false;
  bool allow_reduced_accuracy = false;  // solvers with more than twice PyTorch's error may be chosen
  Epilogues epilogues = Epilogues::chosen;
};

constexpr int64_t kDefaultWorkspaceLimit = int64_t{256} << 20;

Config config();
// Replaces the configuration and makes every thread's decision cache forget. The first solver can't be forbidden.
// Throws std::invalid_argument.
void set_config(Config config);
// Changes with every set_config and forget_decisions; decisions made under another epoch are stale.
uint64_t config_epoch();
// For what else a decision depends on and has just changed.
void forget_decisions();

}  // namespace reformer
