#include "tma_program.h"

#include <map>
#include <memory>
#include <mutex>

#include "../kernels/stitch_plan.h"
#include "../runtime/cache.h"
#include "stitch_source.h"

namespace reformer {
namespace {

// The output that leaves the kernel as the result would; the program's others are written from registers. Or -1.
int output_of_result(const EpilogueCall& call) {
  for (size_t i = 0; i < call.program.outputs.size(); ++i) {
    const EpilogueOutput& output = call.program.outputs[i];
    if (output.kind == Reduction::none && (output.type == Stored::result || output.type == call.type)) return int(i);
  }
  return -1;
}

// A kernel with a program, for types. Never freed: entries point into it.
struct Generated {
  std::string name, text;
};

gpu::Entry entry_of(const TmaGemmKernel& kernel, const EpilogueCall& call) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<const TmaGemmKernel*, std::vector<int64_t>>, std::unique_ptr<Generated>>;
  const gpu::Entry& plain = kernel.entry;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Generated>& made = known[{&kernel, stitch_key(call)}];
  if (!made) {
    const std::string program = stitch_source(call);
    made = std::make_unique<Generated>();
    made->name = std::string(plain.name) + "_" + gpu::digest(program).substr(0, 16);
    made->text = program + "REFORMER_TMA_PROGRAM(" + made->name + ", Program, " + plain.arguments + ")\n";
  }
  return {plain.file, made->name.c_str(), plain.arguments, made->text.c_str()};
}

}  // namespace

bool takes_tma_program(const EpilogueCall& call) {
  if (call.inputs.size() > size_t(kStitchMostInputs) || call.program.outputs.size() > size_t(kStitchMostOutputs))
    return false;
  if (stitch_together(call) < 2) return false;  // a thread has two channels
  for (const EpilogueOperand& input : call.inputs)
    if (input.type == Stored::fp64) return false;
  for (const EpilogueOutput& output : call.program.outputs)
    if (!output.is_by_element() || output.type == Stored::fp64) return false;
  return output_of_result(call) >= 0;
}

void run_tma_program(const TmaGemmKernel& kernel, TmaGemmPlan& plan, const EpilogueCall& call, const void* x,
                     const void* filter, const void* bias, const gpu::Queue& queue) {
  bind(plan, kernel, x, nullptr, filter, bias, call.outputs[size_t(output_of_result(call))], nullptr);
  StitchArgs program{};
  for (size_t i = 0; i < call.inputs.size(); ++i) program.in[i] = call.inputs[i].data;
  for (size_t i = 0; i < call.outputs.size(); ++i) program.out[i] = call.outputs[i];
  program.rows = program.lines = int(call.shape.rows());
  program.channels = program.width = int(call.shape.channels);
  const gpu::Entry entry = entry_of(kernel, call);
  if (kernel.what.windows)
    gpu::launch(entry, plan.launch, queue, WithProgram<TmaWindowsArgs>{plan.args, program});
  else
    gpu::launch(entry, plan.launch, queue, WithProgram<TmaGemmArgs>{plan.args, program});
}

}  // namespace reformer
