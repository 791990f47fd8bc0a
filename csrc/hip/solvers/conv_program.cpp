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

// By that macro of the plain kernel's file; arguments: what it takes after the name and the program.
gpu::Entry generated(const gpu::Entry& plain, const char* macro, const char* arguments, const EpilogueCall& call) {
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

bool takes_program(const EpilogueCall& call, int neighbours, bool reduces) {
  if (call.inputs.size() > size_t(kStitchMostInputs) || call.program.outputs.size() > size_t(kStitchMostOutputs))
    return false;
  if (stitch_together(call) < neighbours || call.program.reductions.size() > (reduces ? 1 : 0)) return false;
  for (const EpilogueOperand& input : call.inputs)
    if (input.type == Stored::fp64) return false;
  for (const EpilogueOutput& output : call.program.outputs) {
    const bool reduced = output.kind != Reduction::none && output.per == Per::channel;
    if ((!output.is_by_element() && !reduced) || output.type == Stored::fp64) return false;
  }
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

int64_t partial_bytes(const EpilogueCall& call, int parts) {
  return int64_t{4} * stitch_numbers(call.program) * parts * call.shape.channels;
}

gpu::Entry with_program(const gpu::Entry& plain, const EpilogueCall& call) {
  return generated(plain, "REFORMER_WITH_PROGRAM", plain.arguments, call);
}

void finish_program(const EpilogueCall& call, const StitchArgs& args, const gpu::Queue& queue) {
  gpu::Launch shape;
  shape.blocks_x = uint32_t((args.channels + kStitchFinishChannels - 1) / kStitchFinishChannels);
  shape.threads = kStitchThreads;
  shape.early = true;
  gpu::launch(generated({"stitch", "stitch_finish", "0"}, "REFORMER_STITCH_FINISH", nullptr, call), shape, queue, args);
}

}  // namespace reformer
