#include "stitch.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "hip/devices.h"
#include "hip/programs/program_text.h"
#include "program/accesses.h"
#include "program/axis_maps.h"
#include "program/program_key.h"
#include "set_cache.h"
#include "stitch_launch.h"

namespace reformer {
namespace {

constexpr int kMostScans = 16;  // whose results fit into registers, and parts into shared memory

// Why no kernel runs the program, or null.
const char* unsupported(const ProgramCall& call, const Device& device) {
  if (call.type == Stored::fp64) return "it computes in fp32";
  if (call.inputs.size() > size_t(kStitchMostInputs) || call.program.outputs.size() > size_t(kStitchMostOutputs))
    return "it has too many inputs or outputs";
  if (call.placements.size() > size_t(kStitchMostPlacements)) return "too many of its tensors lie in other orders";
  if (call.program.maps > kMostMaps) return "it has too many maps of axes";
  if (call.tables.size() > size_t(kStitchMostTables)) return "it looks up rows of too many tables";
  for (const Table& table : call.tables)
    if (std::max(table.rows, table.pitch) > INT32_MAX) return "a table is too large";
  for (const ProgramOperand& input : call.inputs)
    if (input.type == Stored::fp64) return "an input is fp64";
  for (const ProgramOutput& output : call.program.outputs) {
    if (output.type == Stored::fp64) return "an output is fp64";
    if (output.kind != Reduction::none && output.per == Per::row) return "an output is a reduction of rows";
  }
  if ((call.program.needs_rows || call.program.tables) && !call.shape.rows_are_lines())
    return "a row's elements are not adjacent";
  if (call.program.needs_rows && call.program.has_planes) return "it has rows and planes";
  if (call.program.needs_rows && lines_per_access(call)) return "its rows lie apart in a tensor";
  if (gpu::unavailable(device.arch)) return "there are no kernels for this GPU";
  return nullptr;
}

Planned<StitchedPlan> planned(const ProgramCall& call, const Device& device) {
  if (const char* why = unsupported(call, device)) return why;
  const StitchNeeds needs = stitch_needs(call);
  const StitchConfig launches = configure_stitch(call.shape, Accesses(call).elements, needs,
                                                 {usual_units(device.arch), most_shared_bytes(device.arch)});
  if (launches.tile_lines && launches.count < packed_columns(call)) return "adjacent columns of a tensor are unaligned";
  if (launches.lanes && !launches.vectors && !call.program.reductions.empty())
    return "its rows are too long to be added up, too";
  if (launches.lanes && !launches.vectors && needs.scans) return "its rows are too long to be scanned";
  if (needs.scans > kMostScans) return "it scans too many values";
  if (launches.lanes && !launches.vectors && call.program.maps) return "its rows are too long to be read by maps";
  if (launches.launch.blocks_y > uint32_t{stitch_launch::kMostBlocksY})
    return "its rows are too long for a grid of blocks";
  const ProgramText& program = program_text(call);
  std::string name = std::filesystem::path(launches.file()).filename().string() +
                     (launches.channels_along ? "_nhwc_" : "_nchw_") + std::to_string(launches.count) + "_" +
                     program.digest;
  if (launches.tails) name += "_tails";
  if (launches.tile_lines) name += "_" + std::to_string(launches.tile_lines);
  if (launches.lanes)
    name += "_" + std::to_string(launches.lanes) + "_" + std::to_string(launches.vectors) +
            (launches.whole_rows()          ? "_whole"
             : launches.launch.shared_bytes ? "_resident"
                                            : "");
  StitchedPlan plan;
  plan.workspace_bytes = launches.workspace_bytes;
  plan.semaphores = launches.semaphores;
  plan.run = [launches, kernel = gpu::Kernel(launches.file(), name, "0", program.source + launches.text(name)),
              finish = stitch_finish(program)](const ProgramCall& call, const gpu::Queue& queue, void* workspace,
                                               unsigned* semaphores) {
    StitchArgs args = launches.args;
    args.acc = call.acc;
    for (size_t i = 0; i < call.inputs.size(); ++i) args.in[i] = call.inputs[i].data;
    for (size_t i = 0; i < call.placements.size(); ++i) args.placed[i] = stitch_placement(call.placements[i]);
    for (size_t i = 0; i < call.tables.size(); ++i) args.tables[i] = stitch_table(call.tables[i]);
    for (size_t i = 0; i < call.outputs.size(); ++i) args.out[i] = call.outputs[i];
    args.partial = static_cast<float*>(workspace);
    args.semaphores = launches.semaphores ? semaphores : nullptr;
    gpu::launch(kernel, launches.launch, queue, args);
    if (launches.workspace_bytes && !args.semaphores) gpu::launch(finish, launches.finish, queue, args);
  };
  return plan;
}

struct Key {
  ProgramKey program;
  ProgramShape shape;
  std::string arch;
  bool operator==(const Key& other) const {
    return program == other.program && shape == other.shape && arch == other.arch;
  }
};

}  // namespace

const Planned<StitchedPlan>& planned_stitch(const ProgramCall& call, const Device& device) {
  thread_local SetCache<Key, Planned<StitchedPlan>> known;
  const Key key{ProgramKey(call), call.shape, device.arch};
  const uint64_t hash = key.program.hash() ^ call.shape.hash();
  const Planned<StitchedPlan>* const found = known.find(key, hash);
  return found ? *found : known.remember(key, hash, planned(call, device));
}

}  // namespace reformer
