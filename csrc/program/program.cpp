#include "program.h"

#include <algorithm>
#include <cstring>

#include "code_reader.h"
#include "digits.h"

namespace reformer {
namespace {

bool is_input(ProgramOp op) { return (op >= ProgramOp::full && op <= ProgramOp::table) || op == ProgramOp::mapped; }

// The attribute of a mapped tensor: its input in 16 bits, the logarithm of the alignment in 3 bits, where columns
// within a group come from in 12 bits, whether most elements are chosen in 1 bit, and the bits of the fp32 number that
// stands for elements that come from nowhere.
int64_t input_of_mapped(CodeReader& reader, int64_t attribute, std::vector<ProgramInput>& inputs, double& value) {
  const int64_t input = attribute & 0xffff, log_alignment = attribute >> 16 & 7;
  int64_t within = attribute >> 19 & 0xfff;
  const auto bits = uint32_t(uint64_t(attribute) >> 32);
  if (log_alignment > 4) reader.malformed("an alignment of too many elements");
  float number;
  std::memcpy(&number, &bits, sizeof number);
  value = number;
  if (input >= int64_t(inputs.size())) return input;
  ProgramInput& of = inputs[size_t(input)];
  of.alignment = std::min(of.alignment, 1 << log_alignment);
  of.is_within = within > 0;
  of.mostly_chooses = attribute >> 31 & 1;
  if (!within--) return input;
  of.shift = int8_t(within % kMappedGroup);
  within /= kMappedGroup;
  for (int8_t& place : of.within) place = int8_t(within % (kMappedGroup + 1)), within /= kMappedGroup + 1;
  return input;
}

ProgramNode read_node(CodeReader& reader, int64_t place, std::vector<ProgramInput>& inputs) {
  ProgramNode node{};
  node.op = ProgramOp(reader.next(0, kProgramOpCount - 1, "an unknown operation"));
  if (node.op == ProgramOp::index || is_map(node.op)) reader.malformed("an index is no value");
  const int count = operands(node.op);
  for (int i = 0; i < 3; ++i)
    node.operands[i] = int32_t(i < count ? reader.next(0, place - 1, "an operand is no earlier value")
                                         : reader.next(-1, -1, "operands"));
  int64_t attribute = reader.next();
  if (node.op == ProgramOp::mapped) attribute = input_of_mapped(reader, attribute, inputs, node.value);
  if (is_input(node.op)) {
    // The attribute of another input: its number in 16 bits, and the digit that is read.
    if (const int64_t digit = attribute >> 16; node.op != ProgramOp::mapped && digit) {
      if (digit < 0 || digit > kDigits) reader.malformed("an unknown digit");
      node.digit = int8_t(digit);
      attribute &= 0xffff;
    }
    if (attribute < 0 || attribute >= int64_t(inputs.size()) || inputs[size_t(attribute)].kind != node.op)
      reader.malformed("an input of another kind");
    node.input = int32_t(attribute);
  } else {
    std::memcpy(&node.value, &attribute, sizeof node.value);
  }
  return node;
}

ProgramOutput read_output(CodeReader& reader, int64_t nodes, const std::vector<ProgramInput>& inputs) {
  ProgramOutput output{};
  output.kind = Reduction(reader.next(0, int64_t(Reduction::prod), "an unknown output"));
  output.per = Per(reader.next(0, int64_t(Per::height), "an unknown reduction"));
  if (output.kind != Reduction::none && output.per == Per::element) reader.malformed("a reduction per element");
  if (output.kind == Reduction::none && output.per > Per::plane)
    reader.malformed("what is stored is per element, channel, row or plane");
  output.node = int32_t(reader.next(0, nodes - 1, "an output of no value"));
  output.type = Stored(reader.next(-1, int64_t(Stored::int32), "an unknown data type"));
  if (output.kind != Reduction::none && (output.type == Stored::mask || is_whole(output.type)))
    reader.malformed("a reduction to a mask or to whole numbers");
  if (output.kind == Reduction::moments && output.type != Stored::result)
    reader.malformed("moments of a data type of their own");
  output.factor = int32_t(reader.next(-1, nodes - 1, "a factor of no value"));
  // As the attribute of a mapped tensor: the input in 16 bits, and the logarithm of the alignment.
  const int64_t targets = reader.next(-1, 4 << 16 | 0xffff, "an alignment of too many elements");
  output.targets = targets < 0 ? -1 : int32_t(targets & 0xffff);
  output.alignment = targets < 0 ? 16 : 1 << (targets >> 16);
  if (targets < 0) return output;
  if (output.targets >= int32_t(inputs.size()) || inputs[size_t(output.targets)].kind != ProgramOp::targets)
    reader.malformed("an input of another kind");
  if (!output.is_by_element()) reader.malformed("targets of something else than elements");
  return output;
}

}  // namespace

int64_t element_size(Stored type) {
  switch (type) {
    case Stored::fp64:
    case Stored::int64: return 8;
    case Stored::fp32:
    case Stored::int32: return 4;
    case Stored::fp16:
    case Stored::bf16: return 2;
    case Stored::mask:
    case Stored::result: break;
  }
  return 1;
}

Program Program::decode(const int64_t* code, int64_t size) {
  constexpr int64_t most = 1 << 12;  // far more than any program has
  CodeReader reader("program", code, size);
  const int64_t inputs = reader.next(0, most, "inputs"), nodes = reader.next(1, most, "values"),
                outputs = reader.next(1, most, "outputs");
  Program program;
  program.code.assign(code, code + size);
  bool is_of_table = false;
  int64_t mapped = -1;  // the mapped tensor whose maps follow
  for (int64_t i = 0; i < inputs; ++i) {
    const auto kind =
        ProgramOp(reader.next(int64_t(ProgramOp::full), int64_t(ProgramOp::targets), "an unknown kind of input"));
    if ((kind == ProgramOp::index) != is_of_table)
      reader.malformed("a table without its index, or one without a table");
    is_of_table = kind == ProgramOp::table;
    program.tables += is_of_table;
    const bool is_of_axis = is_map(kind) && kind != ProgramOp::targets;
    mapped = is_of_axis ? mapped : kind == ProgramOp::mapped ? i : -1;
    program.maps += is_map(kind);
    if (is_of_axis) {
      if (mapped < 0 || ++program.inputs[size_t(mapped)].maps > kMostMapsOfTensor)
        reader.malformed("a map without its tensor, or too many");
    }
    program.inputs.push_back({kind, is_of_table || kind == ProgramOp::index ? program.tables - 1 : -1});
  }
  if (is_of_table) reader.malformed("a table without its index");
  for (int64_t i = 0; i < nodes; ++i) program.nodes.push_back(read_node(reader, i, program.inputs));
  for (int64_t i = 0; i < outputs; ++i) program.outputs.push_back(read_output(reader, nodes, program.inputs));
  if (!reader.done()) reader.malformed("something follows it");
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const auto same = [&](size_t j) { return program.outputs[i].reduces_like(program.outputs[j]); };
    auto& found = program.reductions;
    if (program.outputs[i].kind != Reduction::none && std::none_of(found.begin(), found.end(), same))
      found.push_back(i);
  }
  for (const ProgramInput& input : program.inputs)
    if (input.kind == ProgramOp::mapped && !input.maps) reader.malformed("a mapped tensor without maps");
  for (const ProgramNode& node : program.nodes) {
    program.needs_rows |= takes_row(node.op);
    program.has_planes |= node.op == ProgramOp::plane;
    program.has_digits |= node.digit > 0;
  }
  for (const ProgramOutput& output : program.outputs) {
    program.has_planes |= output.per == Per::plane;
    program.has_heights |= output.per == Per::height;
    program.needs_rows |= output.is_by_row() || program.has_heights;
  }
  const std::vector<Varies> varies = program.varies();
  for (const ProgramOutput& output : program.outputs) {
    const Varies of = varies[size_t(output.node)];
    if (output.is_by_channel() && !only(of, Varies::channels))
      reader.malformed("what is stored of a channel differs from element to element");
    if (output.is_by_row() && !only(of, Varies::rows))
      reader.malformed("what is stored of a row differs from element to element");
    if (output.is_by_plane() && by_row(of))
      reader.malformed("what is stored of a plane differs from element to element");
    if (output.factor >= 0 && (output.kind != Reduction::sum || output.per != Per::channel ||
                               !only(varies[size_t(output.factor)], Varies::channels)))
      reader.malformed("a factor that is not the same for all of a channel's sum");
  }
  return program;
}

std::vector<Varies> Program::varies() const {
  std::vector<Varies> all(nodes.size());  // constructed with its size: growing would make the compiler export a
                                          // function of a vector of an enumeration
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ProgramNode& node = nodes[i];
    switch (node.op) {
      case ProgramOp::channel:
      case ProgramOp::channel_index: all[i] = Varies::channels; break;
      case ProgramOp::row:
      case ProgramOp::row_sum:
      case ProgramOp::row_max:
      case ProgramOp::row_prod: all[i] = Varies::rows; break;
      case ProgramOp::plane: all[i] = Varies::planes; break;
      case ProgramOp::acc:
      case ProgramOp::full:
      case ProgramOp::random:
      case ProgramOp::mapped:
      case ProgramOp::row_cumsum:
      case ProgramOp::row_cumsum_reversed:
      case ProgramOp::row_cumprod:
      case ProgramOp::row_cumprod_reversed:
      case ProgramOp::table: all[i] = Varies::channels | Varies::rows; break;
      default:
        for (int j = 0; j < operands(node.op); ++j) all[i] = all[i] | all[size_t(node.operands[j])];
    }
  }
  return all;
}

int32_t Program::bias_sum() const {
  int32_t sum = -1;
  for (size_t i = 0; i < nodes.size(); ++i)
    for (int j = 0; j < operands(nodes[i].op); ++j)
      if (nodes[size_t(nodes[i].operands[j])].op == ProgramOp::acc) {
        if (sum >= 0 || nodes[i].op != ProgramOp::add) return -1;
        sum = int32_t(i);
      }
  for (const ProgramOutput& output : outputs)
    if (nodes[size_t(output.node)].op == ProgramOp::acc) return -1;
  if (sum < 0) return -1;
  for (int j = 0; j < 2; ++j)
    if (const ProgramNode& added = nodes[size_t(nodes[size_t(sum)].operands[j])]; added.op == ProgramOp::channel)
      return added.digit ? -1 : sum;
  return -1;
}

int32_t Program::bias() const {
  const int32_t sum = bias_sum();
  if (sum < 0) return -1;
  const int32_t* const added = nodes[size_t(sum)].operands;
  return nodes[size_t(nodes[size_t(added[0])].op == ProgramOp::channel ? added[0] : added[1])].input;
}

void Program::take_bias() {
  const int32_t sum = bias_sum();
  nodes[size_t(sum)] = {ProgramOp::acc, {-1, -1, -1}, 0, 0};
  const int64_t node[] = {int64_t(ProgramOp::acc), -1, -1, -1, 0};
  std::copy(node, node + 5, code.begin() + 3 + int64_t(inputs.size()) + 5 * sum);
}

bool Program::has_acc() const {
  for (const ProgramNode& node : nodes)
    if (node.op == ProgramOp::acc) return true;
  return false;
}

int64_t ProgramShape::count(Per per) const {
  switch (per) {
    case Per::channel: return channels;
    case Per::row: return rows();
    case Per::plane: return images * channels;
    case Per::all: return 1;
    case Per::height: return height * channels;
    case Per::element: break;
  }
  return numel();
}

int32_t ProgramCall::place_of_input(size_t input, const Placement& placement) {
  const ProgramOp kind = program.inputs[input].kind;
  if (kind == ProgramOp::mapped || is_map(kind)) return add(placement);
  for (size_t i = 0; i < input; ++i) {
    const int32_t place = inputs[i].place;
    if (place >= 0 && program.inputs[i].kind == kind && placements[size_t(place)] == placement) return place;
  }
  return add(placement);
}

int32_t ProgramCall::add(const Placement& placement) {
  placements.push_back(placement);
  return int32_t(placements.size()) - 1;
}

bool ProgramShape::operator==(const ProgramShape& other) const {
  return layout == other.layout && images == other.images && channels == other.channels && pixels == other.pixels &&
         height == other.height;
}

uint64_t ProgramShape::hash() const {
  uint64_t hash = uint64_t(layout);
  for (int64_t size : {images, channels, pixels, height}) hash = (hash ^ uint64_t(size)) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

}  // namespace reformer
