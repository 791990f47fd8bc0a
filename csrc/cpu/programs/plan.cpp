#include "plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace reformer::programs {
namespace {

constexpr int64_t kUnits = 128;           // at most about as many,
constexpr int64_t kUnitElements = 16384;  // each at least of about this size

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Step step_of(const Program& program, int32_t i) {
  Step step{i};
  const ProgramNode& node = program.nodes[size_t(i)];
  std::copy(node.operands, node.operands + operands(node.op), step.operands);
  return step;
}

// Makes one step of this one and that of an operand which nothing else uses, if there is an operation for both. Returns
// the operand, or -1.
int32_t absorb(const Program& program, const std::vector<int>& uses, const std::vector<Step>& of_node, Step& step) {
  const auto op_of = [&](int32_t node) { return program.nodes[size_t(node)].op; };
  // The step of an operand that can be taken in.
  const auto single = [&](int32_t node, ProgramOp op, Several several = Several::one) {
    const bool can = uses[size_t(node)] == 1 && op_of(node) == op && of_node[size_t(node)].several == several;
    return can ? &of_node[size_t(node)] : nullptr;
  };
  const auto become = [&](Several several, const int32_t (&with)[3]) {
    step.several = several;
    std::copy(with, with + 3, step.operands);
  };
  const int32_t a = step.operands[0], b = step.operands[1], c = step.operands[2];
  switch (op_of(step.node)) {
    case ProgramOp::add:
      for (int32_t one : {a, b})
        if (const Step* mul = single(one, ProgramOp::mul)) {
          become(Several::mul_add, {mul->operands[0], mul->operands[1], one == a ? b : a});
          return one;
        }
      return -1;
    case ProgramOp::mul:
      for (int32_t one : {a, b})
        if (const Step* sub = single(one, ProgramOp::sub)) {
          become(Several::sub_mul, {sub->operands[0], sub->operands[1], one == a ? b : a});
          return one;
        }
      return -1;
    case ProgramOp::relu:
      if (const Step* add = single(a, ProgramOp::add)) {
        become(Several::add_relu, {add->operands[0], add->operands[1], -1});
        return a;
      }
      if (const Step* add = single(a, ProgramOp::add, Several::mul_add)) {
        become(Several::mul_add_relu, {add->operands[0], add->operands[1], add->operands[2]});
        return a;
      }
      return -1;
    case ProgramOp::select: {
      const auto is_zero = [&](int32_t node) {
        return op_of(node) == ProgramOp::constant && program.nodes[size_t(node)].value == 0;
      };
      const Step* less = single(a, ProgramOp::le);
      if (!less || !is_zero(less->operands[1]) || !is_zero(b)) return -1;
      become(Several::positive, {less->operands[0], c, -1});
      return a;
    }
    default: return -1;
  }
}

}  // namespace

Partition::Partition(const ProgramShape& shape) {
  channels_along = shape.layout == Layout::nhwc || shape.pixels == 1;
  images = channels_along ? 1 : shape.images;
  lines = channels_along ? shape.rows() : shape.channels;
  width = channels_along ? shape.channels : shape.pixels;
  pieces = ceil_div(width, kBlock);
  piece = ceil_div(width, pieces);
  block_lines = pieces > 1 ? 1 : kBlock / width;
  const int64_t units_wanted = std::min(kUnits, shape.numel() / kUnitElements);
  const int64_t wanted = std::max<int64_t>(1, units_wanted / (images * pieces));
  range = ceil_div(ceil_div(lines, std::min(wanted, lines)), block_lines) * block_lines;
  ranges = ceil_div(lines, range);
}

Steps::Steps(const Program& program) : varies(program.varies()), buffer(program.nodes.size(), -1) {
  const int count = int(program.nodes.size());
  const auto by_element = [&](int node) { return varies[size_t(node)] == Varies::elements; };
  std::vector<int> uses(size_t(count), 0);  // by outputs and by what is computed for each element
  for (int i = 0; i < count; ++i)
    if (by_element(i))
      for (int j = 0; j < operands(program.nodes[size_t(i)].op); ++j)
        ++uses[size_t(program.nodes[size_t(i)].operands[j])];
  for (const ProgramOutput& output : program.outputs)
    if (!output.is_by_channel()) ++uses[size_t(output.node)];

  std::vector<Step> of_node;
  std::vector<char> absorbed(size_t(count), false);  // into a later step
  for (int i = 0; i < count; ++i) {
    of_node.push_back(step_of(program, i));
    if (!by_element(i)) continue;
    const int32_t into = absorb(program, uses, of_node, of_node.back());
    if (into >= 0) absorbed[size_t(into)] = true;
  }
  for (int i = 0; i < count; ++i)
    if (by_element(i) && !absorbed[size_t(i)]) steps.push_back(of_node[size_t(i)]);
  place(program);
}

void Steps::place(const Program& program) {
  const int end = int(steps.size());
  std::vector<int> last_use(program.nodes.size(), -1);
  for (int i = 0; i < end; ++i)
    for (int32_t operand : steps[size_t(i)].operands)
      if (operand >= 0) last_use[size_t(operand)] = i;
  for (const ProgramOutput& output : program.outputs)
    if (!output.is_by_channel()) last_use[size_t(output.node)] = end;  // read at the end
  for (size_t node = 0; node < varies.size(); ++node)
    if (varies[node] != Varies::elements && last_use[node] >= 0) buffer[node] = buffers++;

  std::vector<int> free;
  for (int i = 0; i < end; ++i) {
    const Step& step = steps[size_t(i)];
    // An operand's buffer may be the result's: operations go from element to element.
    for (int32_t operand : step.operands)
      if (operand >= 0 && last_use[size_t(operand)] == i && varies[size_t(operand)] == Varies::elements) {
        free.push_back(buffer[size_t(operand)]);
        last_use[size_t(operand)] = -1;  // once, though it may be several operands
      }
    int& its = buffer[size_t(step.node)];
    if (free.empty()) {
      its = buffers++;
    } else {
      its = free.back();
      free.pop_back();
    }
  }
}

Partial Partial::none(Reduction kind) {
  return {0, kind == Reduction::max ? -std::numeric_limits<double>::infinity() : 0.0, 0};
}

void Partial::add(Reduction kind, const Partial& other) {
  if (kind == Reduction::sum) {
    value += other.value;
  } else if (kind == Reduction::max) {
    if (!(value >= other.value) && !std::isnan(value)) value = other.value;
  } else if (other.count > 0) {  // Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm, 1979
    const double all = count + other.count, difference = other.value - value;
    value += difference * (other.count / all);
    squares += other.squares + difference * difference * (count * other.count / all);
    count = all;
  }
}

Partials::Partials(const ProgramOutput& output, const Partition& partition)
    : kind(output.kind), per(output.per), node(output.node) {
  const bool along = (per == Per::channel) != partition.channels_along;
  side = per == Per::all ? Side::all : along ? Side::along : Side::across;
  const int64_t size = side == Side::all     ? partition.units()
                       : side == Side::along ? partition.images * partition.pieces * partition.lines
                                             : partition.images * partition.ranges * partition.width;
  values.assign(size_t(size), Partial::none(kind));
}

Partial Partials::result(const Partition& partition, const ProgramShape& shape, int64_t i) const {
  Partial sum = Partial::none(kind);
  const auto add_all = [&](int64_t first, int64_t count, int64_t step) {
    for (int64_t j = 0; j < count; ++j) sum.add(kind, values[size_t(first + j * step)]);
  };
  if (side == Side::all) {
    add_all(0, int64_t(values.size()), 1);
  } else if (side == Side::along) {  // a line's pieces; of a channel in NCHW, in all images
    add_all(i, partition.images * partition.pieces, partition.lines);
  } else if (per == Per::channel) {  // a column's ranges
    add_all(i, partition.ranges, partition.width);
  } else {  // a pixel in NCHW
    add_all(i / shape.pixels * partition.ranges * partition.width + i % shape.pixels, partition.ranges,
            partition.width);
  }
  return sum;
}

}  // namespace reformer::programs
