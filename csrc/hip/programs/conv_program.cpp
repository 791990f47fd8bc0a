#include "conv_program.h"

#include <algorithm>

#include "program/accesses.h"
#include "program_text.h"
#include "stitch_contents.h"
#include "stitch_finish.h"
#include "stitch_source.h"

namespace reformer {
namespace {

// Index of the output that result_of() returns, or -1.
int output_of_result(const ProgramCall& call) {
  for (size_t i = 0; i < call.program.outputs.size(); ++i) {
    const ProgramOutput& output = call.program.outputs[i];
    if (output.kind == Reduction::none && (output.type == Stored::result || output.type == call.type)) return int(i);
  }
  return -1;
}

bool reduces_within(const ProgramCall& call, Reduces limit) {
  const Program& program = call.program;
  if (program.reductions.empty()) return true;
  if (program.reductions.size() > 1 || limit == Reduces::nothing) return false;
  const int result = output_of_result(call);
  return limit == Reduces::anything ||
         (result >= 0 && program.outputs[program.reductions[0]].node == program.outputs[size_t(result)].node);
}

bool accesses_full(const Program& program) {
  const auto is_of_pixels = [](const ProgramInput& input) {
    return input.kind != ProgramOp::channel && input.kind != ProgramOp::scalar;
  };
  const auto is_by_element = [](const ProgramOutput& output) { return output.is_by_element(); };
  return std::any_of(program.inputs.begin(), program.inputs.end(), is_of_pixels) ||
         std::count_if(program.outputs.begin(), program.outputs.end(), is_by_element) > 1;
}

// The plain kernel with the program in it.
gpu::Kernel generated(const gpu::Entry& plain, const ProgramCall& call, const char* arguments) {
  const ProgramText& program = program_text(call);
  std::string name = std::string(plain.name) + "_" + program.digest;
  std::string text = program.source + "REFORMER_WITH_PROGRAM(" + name + ", Program, " +
                     (arguments ? arguments : plain.arguments) + ")\n";
  return {plain.file, std::move(name), plain.arguments, std::move(text)};
}

}  // namespace

bool supports_program(const ProgramCall& call, const ProgramLimits& limits) {
  if (call.inputs.size() > size_t(kStitchMostInputs) || call.program.outputs.size() > size_t(kStitchMostOutputs))
    return false;
  if (call.program.needs_rows || call.program.has_planes || call.program.tables) return false;
  if (channels_per_access(call) < limits.channels_per_access) return false;
  if (!reduces_within(call, limits.reduces)) return false;
  if (!limits.accesses_full && accesses_full(call.program)) return false;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Stored type = call.inputs[i].type;
    if (type == Stored::fp64 || (is_whole(type) && call.program.inputs[i].kind != ProgramOp::random)) return false;
  }
  for (const ProgramOutput& output : call.program.outputs) {
    const bool reduced = output.kind != Reduction::none && output.per == Per::channel;
    if ((!output.is_by_element() && !reduced) || output.type == Stored::fp64 || is_whole(output.type)) return false;
  }
  return output_of_result(call) >= 0;
}

DenseTensors dense_tensors(const ProgramCall& call) {
  const StitchContents contents(call);
  DenseTensors tensors{{}, {}, int(contents.channel_values.size())};
  for (size_t i = 0; i < contents.loaded.size(); ++i)
    if (contents.loads_dense(i)) tensors.loaded.push_back(size_t(contents.node(contents.loaded[i]).input));
  for (size_t i = 0; i < contents.stored.size(); ++i)
    if (contents.stores_dense(i)) tensors.stored.push_back(contents.stored[i]);
  return tensors;
}

KernelWithProgram::KernelWithProgram(const gpu::Entry& plain, const ProgramCall& call, int parts, const char* arguments)
    : kernel_(generated(plain, call, arguments)),
      result_(size_t(output_of_result(call))),
      workspace_bytes_(parts > 1 ? int64_t{4} * stitch_numbers(call.program) * parts * call.shape.channels : 0) {
  args_.rows = args_.lines = int(call.shape.rows());
  args_.channels = args_.width = int(call.shape.channels);
  args_.parts = parts;
  if (call.program.reductions.empty() || parts == 1) return;  // a single part is stored by the kernel itself
  finish_ = stitch_finish(program_text(call));
  finish_shape_ = stitch_finish_launch(call.program.reductions.size(), stitch_finish_blocks(args_.channels));
}

StitchArgs KernelWithProgram::bound(const ProgramCall& call, void* workspace) const {
  StitchArgs args = args_;
  for (size_t i = 0; i < call.inputs.size(); ++i) args.in[i] = call.inputs[i].data;
  for (size_t i = 0; i < call.outputs.size(); ++i) args.out[i] = call.outputs[i];
  args.partial = static_cast<float*>(workspace);
  return args;
}

}  // namespace reformer
