#include "stitch.h"

#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "hip/gpu_model.h"
#include "hip/kernels/stitch_plan.h"
#include "jit/cache.h"
#include "stitch_source.h"

namespace reformer {
namespace {

// A program's kernels, for types and a layout. Never freed: entries point into it.
struct Kernels {
  std::string text, name, finish_name;
  gpu::Entry entry() const { return {"stitch", name.c_str(), "0", text.c_str()}; }
  gpu::Entry finish() const { return {"stitch", finish_name.c_str(), "0", text.c_str()}; }
};

const Kernels& kernels_of(const ProgramCall& call, bool channels_along, int count) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::vector<int64_t>, std::unique_ptr<Kernels>>;
  std::vector<int64_t> key = stitch_key(call);
  key.insert(key.end(), {channels_along, count});
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Kernels>& kernels = known[key];
  if (!kernels) {
    kernels = std::make_unique<Kernels>();
    const std::string program = stitch_source(call);
    const std::string layout = channels_along ? "nhwc" : "nchw", each = std::to_string(count);
    kernels->name = "stitch_" + layout + "_" + each + "_" + gpu::digest(program).substr(0, 16);
    kernels->finish_name = kernels->name + "_finish";
    kernels->text = program + "REFORMER_STITCH(" + kernels->name + ", Program, " + layout + ", " + each +
                    ")\nREFORMER_STITCH_FINISH(" + kernels->finish_name + ", Program)\n";
  }
  return *kernels;
}

StitchPlan plan_of(const ProgramCall& call, const Device& device) {
  return plan_stitch(call.shape, stitch_elements_per_access(call), stitch_numbers(call.program),
                     usual_units(device.arch));
}

}  // namespace

const char* refuse_stitch(const ProgramCall& call, const Device& device) {
  if (call.type == Stored::fp64) return "it computes in fp32";
  if (call.inputs.size() > size_t(kStitchMostInputs) || call.program.outputs.size() > size_t(kStitchMostOutputs))
    return "it has too many inputs or outputs";
  for (const ProgramOperand& input : call.inputs)
    if (input.type == Stored::fp64) return "an input is fp64";
  for (const ProgramOutput& output : call.program.outputs) {
    if (output.type == Stored::fp64) return "an output is fp64";
    if (output.per == Per::row) return "it reduces rows";
  }
  if (gpu::unavailable(device.arch)) return "there are no kernels for this GPU";
  return nullptr;
}

int64_t stitch_workspace_bytes(const ProgramCall& call, const Device& device) {
  return plan_of(call, device).workspace_bytes;
}

void run_stitch(const ProgramCall& call, const Device& device, const gpu::Queue& queue, void* workspace) {
  StitchPlan plan = plan_of(call, device);
  const Kernels& kernels = kernels_of(call, plan.channels_along, plan.count);
  plan.args.acc = call.acc;
  for (size_t i = 0; i < call.inputs.size(); ++i) plan.args.in[i] = call.inputs[i].data;
  for (size_t i = 0; i < call.outputs.size(); ++i) plan.args.out[i] = call.outputs[i];
  plan.args.partial = static_cast<float*>(workspace);
  gpu::launch(kernels.entry(), plan.launch, queue, plan.args);
  if (plan.workspace_bytes) gpu::launch(kernels.finish(), plan.finish, queue, plan.args);
}

}  // namespace reformer
