// For the emulator's tests: the source and the launches of a program's kernels.
#include <optional>

#include "hip/pointwise/stitch_launch.h"
#include "hip/pointwise/stitch_needs.cpp"
#include "hip/programs/stitch_contents.cpp"
#include "hip/programs/stitch_mapped_source.cpp"
#include "hip/programs/stitch_rows_source.cpp"
#include "hip/programs/stitch_source.cpp"
#include "hip/programs/stitch_tiles_source.cpp"
#include "program/accesses.cpp"
#include "program/axis_maps.h"
#include "program/placement.cpp"
#include "program/program.cpp"

using namespace reformer;

static Program program;
static StitchConfig plan;
static std::string text;

// The placement of a tensor of these dimensions, sizes and strides, if it has one.
static std::optional<Placement> placement_of(const int64_t* tensor, int64_t width) {
  if (tensor[0] <= 4) return {};
  Placement placement;
  if (!find_placement(tensor + 1, tensor + 9, size_t(tensor[0]), width, placement)) throw std::invalid_argument("it");
  return placement;
}

constexpr int kNumbers = 18;  // of a tensor

static bool has_map_of_columns(const int64_t* tensors, const Program& program, int64_t mapped) {
  for (int64_t i = mapped + 1; i <= mapped + program.inputs[size_t(mapped)].maps; ++i)
    if (tensors[i * kNumbers] == 2) return true;
  return false;
}

static void* address(const int64_t* tensor) { return reinterpret_cast<void*>(tensor[17]); }

// Returns a sentence, or null. shape: layout, images, channels, pixels, height. tensors: of each input and then of each
// output how many dimensions it has if it has a placement, else 0, its sizes, eight of them, its strides, and where it
// is.
extern "C" const char* prepare(const int64_t* code, int64_t size, const int64_t* shape, const int8_t* types,
                               const int64_t* tensors, int64_t inputs, int8_t result, int multiprocessors,
                               int shared_bytes) {
  try {
    program = Program::decode(code, size);
  } catch (const std::exception& error) {
    text = error.what();
    return text.c_str();
  }
  ProgramCall call{program, {Layout(shape[0]), shape[1], shape[2], shape[3], shape[4]}, Stored(result), nullptr, {},
                   {}};
  for (int64_t i = 0; i < inputs; ++i) {
    const ProgramOp kind = program.inputs[size_t(i)].kind;
    const bool is_row = kind == ProgramOp::row || kind == ProgramOp::index;
    const int64_t* const tensor = tensors + i * kNumbers;
    // A mapped tensor has an element for each column unless a map is of columns: those have two dimensions.
    const bool of_lines = kind == ProgramOp::mapped && has_map_of_columns(tensors, program, i);
    const int64_t width = is_map(kind) ? tensor[tensor[0]] : is_row || of_lines ? 1 : shape[2];
    call.inputs.push_back({address(tensor), Stored(types[i])});
    if (const auto placement = placement_of(tensor, width))
      call.inputs.back().place = call.place_of_input(size_t(i), *placement);
    if (is_map(kind)) call.inputs.back().width = int32_t(width);
    if (kind == ProgramOp::table) call.tables.push_back({tensor[1], tensor[9]});
  }
  call.outputs.resize(program.outputs.size());
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const int64_t* const tensor = tensors + (inputs + int64_t(i)) * kNumbers;
    call.outputs[i] = address(tensor);
    const auto placement = placement_of(tensor, shape[2]);
    call.places_of_outputs.push_back(placement ? call.add(*placement) : -1);
  }
  plan = configure_stitch(call.shape, Accesses(call).elements, stitch_needs(call), {multiprocessors, shared_bytes});
  for (size_t i = 0; i < call.placements.size(); ++i) plan.args.placed[i] = stitch_placement(call.placements[i]);
  for (size_t i = 0; i < call.tables.size(); ++i) plan.args.tables[i] = stitch_table(call.tables[i]);
  text = stitch_source(call) + plan.text("stitch_test") + "REFORMER_STITCH_FINISH(stitch_test_finish, Program)\n";
  return nullptr;
}

// What follows the two kernel files.
extern "C" const char* source() { return text.c_str(); }

extern "C" int64_t workspace_bytes() { return plan.workspace_bytes; }
extern "C" int64_t semaphores() { return plan.semaphores; }
extern "C" int64_t args_bytes() { return sizeof(StitchArgs); }
extern "C" void launches(uint32_t* shape, uint32_t* finish) {
  const auto put = [](const gpu::Launch& from, uint32_t* to) {
    to[0] = from.blocks_x, to[1] = from.blocks_y, to[2] = from.blocks_z, to[3] = from.threads;
    to[4] = from.shared_bytes;
  };
  put(plan.launch, shape);
  put(plan.finish, finish);
}
extern "C" void arguments(const void* acc, const void* const* inputs, void* const* outputs, void* workspace,
                          void* semaphores, void* to) {
  plan.args.acc = acc;
  for (size_t i = 0; i < program.inputs.size(); ++i) plan.args.in[i] = inputs[i];
  for (size_t i = 0; i < program.outputs.size(); ++i) plan.args.out[i] = outputs[i];
  plan.args.partial = static_cast<float*>(workspace);
  plan.args.semaphores = static_cast<unsigned*>(semaphores);
  std::memcpy(to, &plan.args, sizeof plan.args);
}
extern "C" int is_of_tiles() { return plan.tile_lines; }
