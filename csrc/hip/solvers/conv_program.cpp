#include "conv_program.h"

#include <map>
#include <memory>
#include <mutex>

#include "../kernels/stitch_plan.h"
#include "../runtime/cache.h"
#include "stitch_source.h"

namespace reformer {
namespace {

// Its number, or -1.
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

}  // namespace

bool takes_program(const EpilogueCall& call, int neighbours) {
  if (call.inputs.size() > size_t(kStitchMostInputs) || call.program.outputs.size() > size_t(kStitchMostOutputs))
    return false;
  if (stitch_together(call) < neighbours) return false;
  for (const EpilogueOperand& input : call.inputs)
    if (input.type == Stored::fp64) return false;
  for (const EpilogueOutput& output : call.program.outputs)
    if (!output.is_by_element() || output.type == Stored::fp64) return false;
  return output_of_result(call) >= 0;
}

void* result_of(const EpilogueCall& call) { return call.outputs[size_t(output_of_result(call))]; }

StitchArgs program_args(const EpilogueCall& call) {
  StitchArgs args{};
  for (size_t i = 0; i < call.inputs.size(); ++i) args.in[i] = call.inputs[i].data;
  for (size_t i = 0; i < call.outputs.size(); ++i) args.out[i] = call.outputs[i];
  args.rows = args.lines = int(call.shape.rows());
  args.channels = args.width = int(call.shape.channels);
  return args;
}

gpu::Entry with_program(const gpu::Entry& plain, const EpilogueCall& call) {
  static std::mutex mutex;
  // Plain kernels' names are constants, each in one place.
  static auto& known = *new std::map<std::pair<const char*, std::vector<int64_t>>, std::unique_ptr<Generated>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Generated>& made = known[{plain.name, stitch_key(call)}];
  if (!made) {
    const std::string program = stitch_source(call);
    made = std::make_unique<Generated>();
    made->name = std::string(plain.name) + "_" + gpu::digest(program).substr(0, 16);
    made->text = program + "REFORMER_WITH_PROGRAM(" + made->name + ", Program, " + plain.arguments + ")\n";
  }
  return {plain.file, made->name.c_str(), plain.arguments, made->text.c_str()};
}

}  // namespace reformer
