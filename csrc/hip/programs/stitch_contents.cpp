#include "stitch_contents.h"

#include "program/axis_maps.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace reformer {

StitchContents::StitchContents(const ProgramCall& of)
    : call(of),
      program(of.program),
      inputs(of.inputs),
      result(of.type),
      precision(of.type),
      varies(of.program.varies()),
      accesses(of) {
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    if (output(o).is_common()) of_channels.push_back(o);
    if (output(o).is_by_row()) of_rows.push_back(o);
    if (!output(o).is_by_element()) continue;
    if (first_result < 0 && call.stored_type(output(o)) == result) first_result = int(stored.size());
    stored.push_back(o);
    results.push_back(output(o).node);
  }
  for (size_t o : program.reductions) results.push_back(output(o).node);
  const auto has_bytes = [&](int64_t bytes) {
    return std::any_of(stored.begin(), stored.end(),
                       [&](size_t o) { return element_size(call.stored_type(output(o))) == bytes; });
  };
  const bool has_fp16 =
      std::any_of(stored.begin(), stored.end(), [&](size_t o) { return call.stored_type(output(o)) == Stored::fp16; });
  const bool has_wide = has_bytes(4) || has_bytes(8);
  if (has_bytes(2) && !has_wide) precision = has_fp16 ? Stored::fp16 : Stored::bf16;
  if (has_wide && precision == Stored::bf16) precision = Stored::fp16;
  find_stages();
  std::vector<int32_t> all = results;
  for (size_t o : of_rows) all.push_back(output(o).node);
  for (const auto& of : {stages, scans})
    for (const std::vector<int32_t>& stage : of)
      for (int32_t i : stage) all.push_back(node(i).operands[0]);
  for (int32_t i : needed(all, true)) {
    const bool is_number =
        node(i).op == ProgramOp::constant || node(i).op == ProgramOp::rows || node(i).op == ProgramOp::columns;
    if (!by_element(i)) {
      if (!is_number) channel_values.push_back(i);
    } else if (!operands(node(i).op)) {
      if (node(i).op == ProgramOp::acc) acc = int(loaded.size());
      loaded.push_back(i);
    }
  }
  for (int32_t i : needed(channel_values, false))
    if (is_channel_input(i)) channel_inputs.push_back(i);
  join_parts();
}

namespace {

// The half-open range of columns [begin, end); empty unless begin < end.
struct Columns {
  int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;

  void add(const Columns& other) {
    if (other.begin >= other.end) return;
    begin = std::min(begin, other.begin);
    end = std::max(end, other.end);
  }
};

constexpr Columns kAllColumns{0, std::numeric_limits<int64_t>::max()};

// For a node that is true before a column and false from there on, that column; 0 for other nodes.
int64_t boundary(const Program& program, int32_t i) {
  const ProgramNode& of = program.nodes[size_t(i)];
  if (of.op != ProgramOp::lt || program.nodes[size_t(of.operands[0])].op != ProgramOp::channel_index) return 0;
  const ProgramNode& bound = program.nodes[size_t(of.operands[1])];
  const bool is_column = bound.op == ProgramOp::constant && bound.value > 0 && bound.value < (1 << 24) &&
                         bound.value == std::floor(bound.value);
  return is_column ? int64_t(bound.value) : 0;
}

// For each node, the columns in which an output needs it: selects by column need each operand only on one side.
std::vector<Columns> needed_columns(const Program& program) {
  std::vector<Columns> found(program.nodes.size());
  for (const ProgramOutput& output : program.outputs) {
    found[size_t(output.node)] = kAllColumns;
    if (output.factor >= 0) found[size_t(output.factor)] = kAllColumns;
  }
  for (size_t i = program.nodes.size(); i-- > 0;) {
    const ProgramNode& of = program.nodes[i];
    const Columns needed = takes_row(of.op) && found[i].begin < found[i].end ? kAllColumns : found[i];
    const int64_t at = of.op == ProgramOp::select ? boundary(program, of.operands[0]) : 0;
    for (int j = 0; j < operands(of.op); ++j) {
      Columns its = needed;
      if (at && j == 1) its.end = std::min(its.end, at);
      if (at && j == 2) its.begin = std::max(its.begin, at);
      found[size_t(of.operands[j])].add(its);
    }
  }
  return found;
}

}  // namespace

// Concatenations select one of several tensors by the column. If each thread's elements come from one tensor, it reads
// only that one. Only tensors with a placement are known to lie along columns.
void StitchContents::join_parts() {
  const std::vector<Columns> columns = needed_columns(program);
  const auto may_join = [&](int32_t i) {
    const int32_t place = node(i).op == ProgramOp::full ? inputs[size_t(node(i).input)].place : -1;
    return place >= 0 && !is_transposed(place);
  };
  std::vector<int32_t> alone;
  for (int32_t i : loaded) {
    const Columns& own = columns[size_t(i)];
    const auto goes_on = [&](const std::vector<Part>& there) {
      const int32_t last = there.back().node;
      return may_join(last) && inputs[size_t(node(last).input)].type == inputs[size_t(node(i).input)].type &&
             node(last).digit == node(i).digit && columns[size_t(last)].end <= own.begin &&
             there.back().end % accesses.elements == 0;
    };
    const auto before = may_join(i) ? std::find_if(parts.begin(), parts.end(), goes_on) : parts.end();
    if (before != parts.end()) {
      before->push_back({i, own.end});
    } else {
      alone.push_back(i);
      parts.push_back({{i, own.end}});
    }
  }
  loaded = alone;
  if (acc >= 0)
    acc = int(std::find_if(loaded.begin(), loaded.end(), [&](int32_t i) { return node(i).op == ProgramOp::acc; }) -
              loaded.begin());
}

size_t StitchContents::loaded_place(int32_t i) const {
  const auto has = [&](const std::vector<Part>& some) {
    return std::any_of(some.begin(), some.end(), [&](const Part& part) { return part.node == i; });
  };
  return size_t(std::find_if(parts.begin(), parts.end(), has) - parts.begin());
}

bool StitchContents::loads_dense(size_t i) const {
  const ProgramNode& of = node(loaded[i]);
  if (of.op != ProgramOp::full || parts[i].size() > 1) return false;
  const ProgramOperand& input = inputs[size_t(of.input)];
  return input.place < 0 && input.type == result && accesses.inputs[size_t(of.input)] * element_size(result) == 16;
}

bool StitchContents::stores_dense(size_t i) const {
  return call.stored_type(output(stored[i])) == result && call.place_of_output(stored[i]) < 0;
}

template <class Follows>
std::vector<int32_t> StitchContents::followed(const std::vector<int32_t>& nodes, Follows follows) const {
  std::vector<char> wanted(program.nodes.size(), false);
  for (int32_t i : nodes) wanted[size_t(i)] = true;
  for (int32_t i = int32_t(program.nodes.size()) - 1; i >= 0; --i)
    if (wanted[size_t(i)] && follows(i))
      for (int j = 0; j < operands(node(i).op); ++j) wanted[size_t(node(i).operands[j])] = true;
  std::vector<int32_t> found;
  for (int32_t i = 0; i < int32_t(program.nodes.size()); ++i)
    if (wanted[size_t(i)]) found.push_back(i);
  return found;
}

int32_t StitchContents::number_of_row(int32_t i) const {
  if (!program.needs_rows || (node(i).op != ProgramOp::eq && node(i).op != ProgramOp::ne)) return -1;
  for (int j = 0; j < 2; ++j) {
    const int32_t number = node(i).operands[j];
    const bool is_index = node(node(i).operands[1 - j]).op == ProgramOp::channel_index;
    if (!is_index || varies[size_t(number)] != Varies::rows) continue;
    const std::vector<int32_t> made_of = needed({number}, true);
    if (std::none_of(made_of.begin(), made_of.end(), [&](int32_t each) { return reduces_row(node(each).op); }))
      return number;
  }
  return -1;
}

std::vector<int32_t> StitchContents::needed(const std::vector<int32_t>& nodes, bool elements) const {
  return followed(nodes, [&](int32_t i) { return by_element(i) == elements && !takes_row(node(i).op); });
}

bool StitchContents::sums_one_by_one(const ProgramNode& leaf) const {
  if (leaf.op != ProgramOp::mapped) return false;
  const AxisMaps maps(call, size_t(leaf.input));
  return maps.of_columns() && !maps.only_choose();
}

// Bytes that a thread reads for its elements of a line.
int64_t StitchContents::bytes_of_line() const {
  int64_t bytes = 0;
  for (int32_t i : loaded) {
    const ProgramOp op = node(i).op;
    if (op == ProgramOp::random || op == ProgramOp::row) continue;
    const size_t input = size_t(node(i).input);
    int64_t of_element = element_size(op == ProgramOp::acc ? result : inputs[input].type);
    if (op == ProgramOp::mapped && !program.inputs[input].mostly_chooses)
      for (const AxisMap& map : AxisMaps(call, input)) of_element *= map.taps;
    bytes += of_element * accesses.elements;
  }
  return bytes;
}

// A multiprocessor needs some 40 KB in flight. Sums of several taps have that with one line a thread, which takes few
// registers: the more blocks run at once, the better some of them compute while others wait.
int StitchContents::lines_at_once() const {
  constexpr int64_t kMany = 64;
  if (program.maps > 0 && program.reductions.empty()) return bytes_of_line() >= kMany ? 1 : 2;
  return loaded.size() > 1 ? 2 : 4;
}

// With a bound the compiler issues all loads of sums before it adds up the first ones, rather than to save registers
// for blocks beyond this number. The loads of more than some nine taps do not fit into registers.
int StitchContents::blocks_at_once() const {
  constexpr int64_t kMost = 160;
  return program.maps > 0 && program.reductions.empty() && lines_at_once() * bytes_of_line() <= kMost ? 3 : 0;
}

bool StitchContents::is_transposed() const { return lines_per_access(call) > 0; }

std::vector<int32_t> StitchContents::within_rows(const std::vector<int32_t>& nodes) const {
  return followed(nodes, [&](int32_t i) { return by_element(i) && !is_of_rows(i) && !scans_row(node(i).op); });
}

void StitchContents::find_stages() {
  std::vector<size_t> before(program.nodes.size());  // stages that must precede each node
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const ProgramNode& of = program.nodes[i];
    for (int j = 0; j < operands(of.op); ++j) before[i] = std::max(before[i], before[size_t(of.operands[j])]);
    if (!takes_row(of.op)) continue;
    stages.resize(std::max(stages.size(), before[i] + 1));
    scans.resize(stages.size());
    (scans_row(of.op) ? scans : stages)[before[i]++].push_back(int32_t(i));
  }
}

}  // namespace reformer
