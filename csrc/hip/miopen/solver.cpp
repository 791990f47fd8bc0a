// MIOpen's solvers as candidates on AMD GPUs, run by its immediate API: the problem and the solver's number determine
// what runs, independent of MIOpen's own databases. They are ranked by weights trained on MIOpen's timings.
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "conditions.h"
#include "conv/solver.h"
#include "descriptors.h"
#include "devices.h"
#include "failures.h"
#include "handle.h"
#include "jit/current_stream.h"
#include "jit/gpu.h"
#include "library.h"
#include "rules.h"
#include "solver_table.h"

namespace reformer {
namespace miopen {
namespace {

// Records that the solver failed for the problem. The exception makes PyTorch's own convolution run instead.
NotRun remembered(const Api& api, const Failure& failure, const MiopenSolver& solver, const RunKey& key,
                  const std::string& arch) {
  std::string message = std::string(failure.call) + " gave " + api.error_string(failure.status) + " (" +
                        std::to_string(failure.status) + ")";
  if (failure.is_of_problem) message += std::string(" for ") + solver.name + " on " + key.problem.str();
  const bool is_new = note_failure(key, arch, message);
  return NotRun(is_new ? message + "; PyTorch's own convolution runs instead" : "", true);
}

constexpr const char* kRuns[] = {"miopenConvolutionForwardImmediate", "miopenConvolutionBackwardDataImmediate",
                                 "miopenConvolutionBackwardWeightsImmediate"};
constexpr const char* kQueries[] = {"miopenConvolutionForwardGetSolutionWorkspaceSize",
                                    "miopenConvolutionBackwardDataGetSolutionWorkspaceSize",
                                    "miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize"};
constexpr const char* kCompiles[] = {"miopenConvolutionForwardCompileSolution",
                                     "miopenConvolutionBackwardDataCompileSolution",
                                     "miopenConvolutionBackwardWeightsCompileSolution"};

// MIOpen's answers to workspace queries for a solver: bytes, or nullopt if the solver does not apply. They are equal on
// all devices of an architecture and don't depend on the user's databases.
class Workspaces {
 public:
  // Throws Failure; or NotRun if the query would need calls that are forbidden while a graph is being captured.
  std::optional<int64_t> get(const Api& api, const RunKey& key, int32_t device, const std::string& arch) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto& known = known_[arch];
      if (const auto found = known.find(key); found != known.end()) return found->second;
    }
    const std::optional<int64_t> answer = ask(api, key, device);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& known = known_[arch];
    if (known.size() >= kMost) known.clear();
    known.emplace(key, answer);
    return answer;
  }

 private:
  static constexpr size_t kMost = 1 << 16;

  static std::optional<int64_t> ask(const Api& api, const RunKey& key, int32_t device) {
    const CurrentDevice current(device);
    void* const stream = gpu::current_stream(device);
    if (is_capturing(stream)) throw NotRun("", true);
    const Descriptors descriptors(api, key.problem, key.deterministic);
    const Handle handle = handle_of(api, device, stream).get();
    const auto& [first, second, result] = descriptors.tensors();
    const auto direction = size_t(key.problem.direction);
    size_t bytes = 0;
    const Status status =
        api.workspace_size[direction](handle, first, second, descriptors.conv(), result, key.solver, &bytes);
    if (status == kBadParameter) return std::nullopt;
    check(status, kQueries[direction]);
    return int64_t(bytes);
  }

  std::mutex mutex_;
  std::map<std::string, std::unordered_map<RunKey, std::optional<int64_t>, RunKey::Hash>> known_;
};

Workspaces& workspaces() {
  static Workspaces& all = *new Workspaces;  // torch's threads may outlive static objects
  return all;
}

// A solver's runs for a problem, by any thread and on any device of the architecture.
class Runs {
 public:
  Runs(const Api& api, const MiopenSolver& solver, const RunKey& key, int64_t bytes, const std::string& arch)
      : api_(api),
        solver_(solver),
        key_(key),
        bytes_(bytes),
        arch_(arch),
        descriptors_(api, key.problem, key.deterministic) {}

  void run(const ConvBuffers& buffers) const {
    const CurrentDevice current(buffers.queue.device);
    const ThreadHandle* const known = find_handle(buffers.queue.device);
    const bool is_first = !known || !known->has_run(key_);
    if (is_first && is_capturing(buffers.queue.stream)) throw NotRun("", false);
    try {
      ThreadHandle& handle = handle_of(api_, buffers.queue.device, buffers.queue.stream);
      handle.set_stream(buffers.queue.stream);
      if (is_first) compile(handle);
      run(handle, buffers);
      if (is_first) handle.note_run(key_);
    } catch (const Failure& failure) {
      throw remembered(api_, failure, solver_, key_, arch_);
    }
  }

 private:
  void compile(const ThreadHandle& handle) const {
    const auto direction = size_t(key_.problem.direction);
    const auto& [first, second, result] = descriptors_.tensors();
    check(api_.compile[direction](handle.get(), first, second, descriptors_.conv(), result, solver_.id),
          kCompiles[direction]);
  }

  void run(const ThreadHandle& handle, const ConvBuffers& b) const {
    const auto direction = size_t(key_.problem.direction);
    const auto& [first, second, result] = descriptors_.tensors();
    const auto pointers = in_order(key_.problem.direction, b.x, b.w, b.y);
    check(api_.run[direction](handle.get(), first, pointers.first, second, pointers.second, descriptors_.conv(), result,
                              pointers.result, bytes_ ? b.workspace : nullptr, size_t(bytes_), solver_.id),
          kRuns[direction]);
  }

  const Api& api_;
  const MiopenSolver& solver_;
  const RunKey key_;
  const int64_t bytes_;
  const std::string arch_;
  const Descriptors descriptors_;
};

class Miopen final : public Solver {
 public:
  explicit Miopen(const MiopenSolver& solver) : solver_(solver) {}

  const char* name() const override { return solver_.name; }
  bool runs_on(const Device& device) const override { return device.is_amd(); }
  bool estimates() const override { return false; }

  Planned<ConvPlan> plan(const ConvProblem& of, const Device& device) const override {
    ConvProblem p = of;
    p.bias = 0;
    const std::optional<int32_t> gpu = device.index < 0 ? device_of(device.arch) : device.index;
    const std::string& target = gpu ? gpu::target(*gpu) : device.arch;
    if (const char* why = unsupported(solver_, p, target, device.deterministic)) return why;
    ConvPlan plan;
    plan.deterministic = solver_.deterministic;
    plan.leaves_bias = true;
    plan.last_resort = solver_.rule == naive;
    if (!gpu) {  // a device given only by name: nothing will run
      if (solver_.check == Check::asked) plan.condition = "MIOpen agrees, which is asked where it runs";
      plan.run = [](const ConvBuffers&) { throw std::logic_error("this process has no such GPU"); };
      return plan;
    }
    if (!library().api) return library().reason;
    const Api& api = *library().api;
    if (!is_registered(api, solver_)) return "this version of MIOpen has no such solver";
    const RunKey key{p, solver_.id, device.deterministic};
    if (const char* why = find_failure(key, device.arch)) return why;
    try {
      if (solver_.check == Check::asked) {
        const auto bytes = workspaces().get(api, key, *gpu, device.arch);
        if (!bytes) return "MIOpen says that it does not apply";
        plan.workspace_bytes = *bytes;
      }
      const auto runs = std::make_shared<const Runs>(api, solver_, key, plan.workspace_bytes, device.arch);
      plan.run = [runs](const ConvBuffers& buffers) { runs->run(buffers); };
    } catch (const NotRun& why) {
      plan.run = [why](const ConvBuffers&) { throw why; };
    } catch (const Failure& failure) {
      const NotRun why = remembered(api, failure, solver_, key, device.arch);
      plan.run = [why](const ConvBuffers&) { throw why; };
    }
    return plan;
  }

 private:
  const MiopenSolver& solver_;
};

}  // namespace
}  // namespace miopen

const std::vector<const Solver*>& miopen_solvers() {
  static const std::vector<const Solver*> list = [] {
    std::vector<const Solver*> all;
    for (const miopen::MiopenSolver& solver : miopen::solver_table()) all.push_back(new miopen::Miopen(solver));
    return all;
  }();
  return list;
}

}  // namespace reformer
