#include "run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"
#include "plan.h"
#include "program/axis_maps.h"
#include "program/digits.h"
#include "program/targets.h"

#define REFORMER_ISA_BODY "cpu/programs/run_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {
namespace {

constexpr int64_t kGrain = 32768;  // elements that justify a thread

template <class S>
void run_as(const ProgramCall& call, const Device& device) {
  const programs::Partition partition(call.shape, call.program);
  const programs::Steps steps(call.program, partition);
  std::vector<programs::Partials> partials;  // one for each distinct reduction; outputs may share it
  const auto partials_of = [&](const ProgramOutput& output) {
    return std::find_if(partials.begin(), partials.end(), [&](const auto& there) { return there.is_of(output); });
  };
  for (size_t i : call.program.reductions) partials.emplace_back(call.program.outputs[i], partition);

  const int64_t grain = std::max<int64_t>(1, kGrain * partition.units() / call.shape.numel());
  const auto factors = REFORMER_BY_ISA(device.isa, run_units<S>)(call, partition, steps, partials, grain);

  for (size_t i = 0; i < call.program.outputs.size(); ++i) {
    const ProgramOutput& output = call.program.outputs[i];
    if (output.kind == Reduction::none) continue;
    const programs::Partials& from = *partials_of(output);
    const int64_t count = call.shape.count(output.per);
    const programs::PartialArray found = from.result(partition, count);
    std::vector<S> results(found.values.size() + found.squares.size());
    for (size_t j = 0; j < found.values.size(); ++j)
      results[j] = S(output.factor < 0 ? found.values[j] : found.values[j] * double(factors[i][j]));
    std::copy(found.squares.begin(), found.squares.end(), results.begin() + count);
    REFORMER_BY_ISA(device.isa, write<S>)
    (call.outputs[i], call.stored_type(output), 0, results.data(), int64_t(results.size()));
  }
}

}  // namespace

void run_program(const ProgramCall& call, const Device& device) {
  if (call.type == Stored::fp64)
    run_as<double>(call, device);
  else
    run_as<float>(call, device);
}

}  // namespace reformer
