#include "stitch_needs.h"

#include <algorithm>
#include <cstdint>

#include "hip/programs/stitch_contents.h"
#include "hip/programs/stitch_source.h"
#include "program/placement.h"

namespace reformer {

StitchNeeds stitch_needs(const ProgramCall& call) {
  const Program& program = call.program;
  const StitchContents contents(call);
  int64_t bytes = 0, period = 0;
  int loaded = 0, one_by_one = 0;
  for (int32_t i : contents.loaded) {
    const ProgramNode& node = contents.node(i);
    if (node.op == ProgramOp::row) continue;
    ++loaded;
    one_by_one += contents.sums_one_by_one(node);
    if (node.op != ProgramOp::random)
      bytes += element_size(node.op == ProgramOp::acc ? call.type : call.inputs[size_t(node.input)].type);
  }
  int scans = 0;
  for (const std::vector<int32_t>& stage : contents.scans) scans += int(stage.size());
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (call.inputs[i].place >= 0 && !is_map(program.inputs[i].kind) && program.inputs[i].kind != ProgramOp::mapped)
      period = std::max(period, call.placements[size_t(call.inputs[i].place)].period());
  const auto moments = std::count_if(program.reductions.begin(), program.reductions.end(),
                                     [&](size_t o) { return program.outputs[o].kind == Reduction::moments; });
  const auto reductions = [&](Per per) {
    return size_t(std::count_if(program.reductions.begin(), program.reductions.end(),
                                [&](size_t o) { return program.outputs[o].per == per; }));
  };
  return {program.reductions.size(),
          stitch_numbers(program),
          loaded,
          int(bytes) + 4 * scans,
          int(contents.stored.size()),
          program.needs_rows,
          scans,
          program.has_planes,
          program.has_heights,
          std::any_of(program.inputs.begin(), program.inputs.end(),
                      [](const ProgramInput& input) { return input.kind == ProgramOp::random; }),
          lines_per_access(call),
          packed_columns(call),
          int(contents.channel_values.size()),
          stitch_numbers(program) + 2 * int(moments),
          int(contents.needed(contents.results, true).size()),
          one_by_one,
          contents.lines_at_once(),
          contents.blocks_at_once(),
          writes_parts_of_sectors(call),
          int(period),
          program.maps > 0,
          reductions(Per::plane) + reductions(Per::height),
          reductions(Per::all)};
}

}  // namespace reformer
