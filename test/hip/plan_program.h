// What the libraries that plan launches for Python share to plan a program inside of a convolution's kernel.
#pragma once

#include <functional>
#include <string>

#include "hip/programs/conv_program.cpp"
#include "hip/programs/program_text.cpp"
#include "hip/programs/stitch_contents.cpp"
#include "hip/programs/stitch_mapped_source.cpp"
#include "hip/programs/stitch_rows_source.cpp"
#include "hip/programs/stitch_source.cpp"
#include "hip/programs/stitch_tiles_source.cpp"
#include "jit/cache.cpp"
#include "plan_problem.h"
#include "program/accesses.cpp"
#include "program/placement.cpp"
#include "program/program.cpp"
#include "program/program_key.cpp"

namespace reformer {

void gpu::launch(const Kernel& kernel, const Launch& shape, const Queue& queue, const void* arguments, size_t bytes) {
  queue.launcher(kernel.entry(), shape, arguments, bytes);
}

// What a solver would have started, one kernel after the other.
struct Started {
  std::string file, name, text;
  gpu::Launch shape;
  std::string arguments;
};
static std::vector<Started> started;
static const gpu::Queue keeps_what_is_started{
    0, nullptr, [](const gpu::Entry& entry, const gpu::Launch& shape, const void* arguments, size_t bytes) {
      started.push_back(
          {entry.file, entry.name, entry.text, shape, std::string(static_cast<const char*>(arguments), bytes)});
    }};

// A program as Python gives it: its code, and its tensors, of which Stored says the types. shape: images, channels
// and pixels of the result.
struct GivenProgram {
  const int64_t* code;
  int64_t size;
  const int64_t* shape;
  const int8_t* types;
  const void* const* inputs;
  void* const* outputs;
};

// Has `start` start the problem's kernel with the program, unless kernels with these limits don't take it. Returns a
// sentence, or null.
inline const char* plan_program(const GivenProgram& given, const ConvProblem& p, const ProgramLimits& limits,
                                const std::function<void(const ProgramCall&)>& start) {
  Program program = Program::decode(given.code, given.size);
  static int64_t number = 0;
  program.number = number++;
  const int64_t* const shape = given.shape;
  ProgramCall call{program, {Layout::nhwc, shape[0], shape[1], shape[2]}, Stored(int8_t(p.dtype)), nullptr, {}, {}};
  for (size_t i = 0; i < program.inputs.size(); ++i) call.inputs.push_back({given.inputs[i], Stored(given.types[i])});
  if (!supports_program(call, limits)) return "the kernels don't support this program";
  for (size_t i = 0; i < program.outputs.size(); ++i) call.outputs.push_back(given.outputs[i]);
  started.clear();
  start(call);
  return nullptr;
}

}  // namespace reformer

extern "C" {
int started_count() { return int(reformer::started.size()); }
const char* started_file(int i) { return reformer::started[size_t(i)].file.c_str(); }
const char* started_name(int i) { return reformer::started[size_t(i)].name.c_str(); }
const char* started_text(int i) { return reformer::started[size_t(i)].text.c_str(); }
int64_t started_bytes(int i) { return int64_t(reformer::started[size_t(i)].arguments.size()); }
const void* started_arguments(int i) { return reformer::started[size_t(i)].arguments.data(); }
// numbers: as append().
void started_shape(int i, int64_t* numbers) { reformer::append(numbers, reformer::started[size_t(i)].shape); }
}
