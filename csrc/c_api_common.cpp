#include "c_api_common.h"

#include <algorithm>
#include <utility>

#include "cpu/parallel.h"
#include "dispatch/pytorch_settings.h"
#include "dispatch/solver_list.h"

namespace reformer::c_api {
namespace {

thread_local std::string text, error;

}  // namespace

void set_error(const char* message) { error = message; }

const char* keep(std::string value) {
  text = std::move(value);
  return text.c_str();
}

Device device_of(const char* text) {
  Device device = text ? Device::parse(text) : Device::cpu(max_threads());
  device.tf32 = allows_tf32(device);
  device.deterministic = asks_for_determinism(device);
  return device;
}

int32_t index_of(const Decision& choice) {
  return static_cast<int32_t>(std::find(solvers().begin(), solvers().end(), choice.solver) - solvers().begin());
}

}  // namespace reformer::c_api

const char* reformer_error() { return reformer::c_api::error.c_str(); }
