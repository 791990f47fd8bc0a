#include "library.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "conv/problem.h"
#include "jit/loaded_library.h"

namespace reformer::miopen {
namespace {

Api functions_of(void* found) {
  const auto find = [&](const std::string& name, auto& function) {
    gpu::find_symbol(found, ("miopen" + name).c_str(), function);
  };
  Api api{};
  find("GetVersion", api.version);
  find("GetErrorString", api.error_string);
  find("CreateWithStream", api.create);
  find("SetStream", api.set_stream);
  find("CreateTensorDescriptor", api.create_tensor);
  find("DestroyTensorDescriptor", api.destroy_tensor);
  find("SetNdTensorDescriptorWithLayout", api.set_tensor);
  find("CreateConvolutionDescriptor", api.create_conv);
  find("DestroyConvolutionDescriptor", api.destroy_conv);
  find("InitConvolutionNdDescriptor", api.init_conv);
  find("SetConvolutionGroupCount", api.set_groups);
  find("SetConvolutionAttribute", api.set_attribute);
  find("GetSolverIdConvAlgorithm", api.algorithm_of);
  const std::string names[] = {"ConvolutionForward", "ConvolutionBackwardData", "ConvolutionBackwardWeights"};
  for (size_t direction = 0; direction < 3; ++direction) {
    find(names[direction] + "GetSolutionWorkspaceSize", api.workspace_size[direction]);
    find(names[direction] + "CompileSolution", api.compile[direction]);
    find(names[direction] + "Immediate", api.run[direction]);
  }
  return api;
}

// With MIOPEN_HIPDNN_FORWARDING, MIOpen forwards its calls to another library, whose solvers have other numbers.
bool is_forwarding() {
  const char* value = std::getenv("MIOPEN_HIPDNN_FORWARDING");
  if (!value) return false;
  for (const char* off : {"", "0", "off", "OFF", "no", "NO", "false", "FALSE", "disable", "DISABLE"})
    if (std::string_view(value) == off) return false;
  return true;
}

// 2.20 is the version in ROCm 5.7. Numbers of solvers are checked one by one (is_registered), but the meaning of
// functions can't be.
std::string wrong_version(const Api& api) {
  size_t major = 0, minor = 0, patch = 0;
  if (api.version(&major, &minor, &patch) != kSuccess) return "MIOpen does not tell its version";
  if ((major == 2 && minor >= 20) || major == 3) return {};
  return "MIOpen's version is " + std::to_string(major) + "." + std::to_string(minor) + ", and 2.20 to 3 are known";
}

Library found_library() {
  static Api api;
  static std::string reason;
  void* const found = gpu::loaded_library("libMIOpen");
  try {
    if (!found)
      reason = "MIOpen is not in this process";
    else if (is_forwarding())
      reason = "MIOPEN_HIPDNN_FORWARDING makes MIOpen call another library";
    else if (api = functions_of(found); true)
      reason = wrong_version(api);
  } catch (const std::runtime_error& error) {
    reason = error.what();
  }
  return reason.empty() ? Library{&api, nullptr} : Library{nullptr, reason.c_str()};
}

}  // namespace

const Library& library() {
  static const Library found = found_library();
  return found;
}

bool is_registered(const Api& api, const MiopenSolver& solver) {
  enum : uint8_t { unknown, no, yes };
  static auto& known = *new std::vector<std::atomic<uint8_t>>(solver_table().size());
  auto& answer = known[size_t(&solver - solver_table().data())];
  if (answer == unknown) {
    int algorithm = -1;
    const bool same = api.algorithm_of(solver.id, &algorithm) == kSuccess && algorithm == int(solver.algorithm);
    answer = same ? yes : no;
  }
  return answer == yes;
}

}  // namespace reformer::miopen
