// For the emulator's tests: the source and the launches of a program's kernels.
#include "hip/kernels/stitch_plan.h"
#include "hip/programs/stitch_contents.cpp"
#include "hip/programs/stitch_source.cpp"
#include "program/program.cpp"
#include "program/program_key.cpp"

using namespace reformer;

static Program program;
static StitchPlan plan;
static std::string text;

// Returns a sentence, or null. shape: layout, images, channels, pixels. pitches: of the inputs, as program.h has them.
extern "C" const char* prepare(const int64_t* code, int64_t size, const int64_t* shape, const int8_t* types,
                               const int64_t* pitches, int64_t inputs, int8_t result, int multiprocessors) {
  try {
    program = Program::decode(code, size);
  } catch (const std::exception& error) {
    text = error.what();
    return text.c_str();
  }
  ProgramCall call{program, {Layout(shape[0]), shape[1], shape[2], shape[3]}, Stored(result), nullptr, {}, {}};
  for (int64_t i = 0; i < inputs; ++i) call.inputs.push_back({nullptr, Stored(types[i]), pitches[i]});
  plan = plan_stitch(call.shape, elements_per_access(call), stitch_needs(program), multiprocessors);
  for (int64_t i = 0; i < inputs; ++i) plan.args.pitch[i] = int(pitches[i]);
  text = stitch_source(program, call.inputs, Stored(result)) + plan.text("stitch_test") +
         "REFORMER_STITCH_FINISH(stitch_test_finish, Program)\n";
  return nullptr;
}

// What follows the two kernel files.
extern "C" const char* source() { return text.c_str(); }

extern "C" int64_t workspace_bytes() { return plan.workspace_bytes; }
extern "C" int64_t args_bytes() { return sizeof(StitchArgs); }
extern "C" void launches(uint32_t* shape, uint32_t* finish) {
  const auto put = [](const gpu::Launch& from, uint32_t* to) {
    to[0] = from.blocks_x, to[1] = from.blocks_y, to[2] = from.blocks_z, to[3] = from.threads;
  };
  put(plan.launch, shape);
  put(plan.finish, finish);
}
extern "C" void arguments(const void* acc, const void* const* inputs, void* const* outputs, void* workspace, void* to) {
  plan.args.acc = acc;
  for (size_t i = 0; i < program.inputs.size(); ++i) plan.args.in[i] = inputs[i];
  for (size_t i = 0; i < program.outputs.size(); ++i) plan.args.out[i] = outputs[i];
  plan.args.partial = static_cast<float*>(workspace);
  std::memcpy(to, &plan.args, sizeof plan.args);
}
