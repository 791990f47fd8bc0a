#include "conv_program.h"

#include <map>
#include <memory>
#include <mutex>

#include "hip/kernels/stitch_plan.h"
#include "jit/cache.h"
#include "stitch_source.h"

namespace reformer {
namespace {

// The number of the output that result_of() returns, or -1.
int output_of_result(const ProgramCall& call) {
  for (size_t i = 0; i < call.program.outputs.size(); ++i) {
    const ProgramOutput& output = call.program.outputs[i];
    if (output.kind == Reduction::none && (output.type == Stored::result || output.type == call.type)) return int(i);
  }
  return -1;
}

// A kernel with a program, for types. Never freed: entries point into it.
struct Generated {
  std::string name, text;
};

// The kernel that this macro of the plain kernel's file makes. arguments: the macro's, after the name and the program.
gpu::Entry generated(const gpu::Entry& plain, const char* macro, const char* arguments, const ProgramCall& call) {
  static std::mutex mutex;
  // Plain kernels' names are constants, each in one place.
  static auto& known = *new std::map<std::pair<const char*, std::vector<int64_t>>, std::unique_ptr<Generated>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Generated>& made = known[{plain.name, stitch_key(call)}];
  if (!made) {
    const std::string program = stitch_source(call);
    made = std::make_unique<Generated>();
    made->name = std::string(plain.name) + "_" + gpu::digest(program).substr(0, 16);
    made->text =
        program + macro + "(" + made->name + ", Program" + (arguments ? std::string(", ") + arguments : "") + ")\n";
  }
  return {plain.file, made->name.c_str(), plain.arguments, made->text.c_str()};
}

}  // namespace

bool takes_program(const ProgramCall& call, int elements_per_access, bool reduces) {
  if (call.inputs.size() > size_t(kStitchMostInputs) || call.program.outputs.size() > size_t(kStitchMostOutputs))
    return false;
  if (stitch_elements_per_access(call) < elements_per_access || call.program.reductions.size() > (reduces ? 1 : 0))
    return false;
  for (const ProgramOperand& input : call.inputs)
    if (input.type == Stored::fp64) return false;
  for (const ProgramOutput& output : call.program.outputs) {
    const bool reduced = output.kind != Reduction::none && output.per == Per::channel;
    if ((!output.is_by_element() && !reduced) || output.type == Stored::fp64) return false;
  }
  return output_of_result(call) >= 0;
}

void* result_of(const ProgramCall& call) { return call.outputs[size_t(output_of_result(call))]; }

StitchArgs program_args(const ProgramCall& call) {
  StitchArgs args{};
  for (size_t i = 0; i < call.inputs.size(); ++i) args.in[i] = call.inputs[i].data;
  for (size_t i = 0; i < call.outputs.size(); ++i) args.out[i] = call.outputs[i];
  args.rows = args.lines = int(call.shape.rows());
  args.channels = args.width = int(call.shape.channels);
  return args;
}

int64_t partial_bytes(const ProgramCall& call, int parts) {
  return int64_t{4} * stitch_numbers(call.program) * parts * call.shape.channels;
}

gpu::Entry with_program(const gpu::Entry& plain, const ProgramCall& call) {
  return generated(plain, "REFORMER_WITH_PROGRAM", plain.arguments, call);
}

void finish_program(const ProgramCall& call, const StitchArgs& args, const gpu::Queue& queue) {
  gpu::Launch shape;
  shape.blocks_x = uint32_t((args.channels + kStitchFinishChannels - 1) / kStitchFinishChannels);
  shape.threads = kStitchThreads;
  shape.pdl = true;
  gpu::launch(generated({"stitch", "stitch_finish", "0"}, "REFORMER_STITCH_FINISH", nullptr, call), shape, queue, args);
}

}  // namespace reformer
