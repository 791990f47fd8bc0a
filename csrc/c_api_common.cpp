#include "c_api_common.h"

#include <algorithm>
#include <stdexcept>
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

ProgramCall call_without_tensors(const Program& program, const ConvProblem& p) {
  const auto type = Stored(int8_t(p.dtype));
  const auto [n, channels, h, w] = p.result_sizes();
  ProgramCall call{program, {p.layout, n, channels, h * w}, type, nullptr, {}, {}};
  for (const ProgramInput& input : program.inputs) {
    if (input.kind == ProgramOp::table || input.kind == ProgramOp::index)
      throw std::invalid_argument("tables are looked up behind no convolution");
    const Stored given = input.kind == ProgramOp::random ? Stored::int64
                         : input.kind == ProgramOp::full ? type
                                                         : Stored::fp32;
    call.inputs.push_back({nullptr, given});
  }
  return call;
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
