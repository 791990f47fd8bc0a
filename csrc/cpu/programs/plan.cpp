#include "plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace reformer::programs {
namespace {

constexpr int64_t kUnits = 128;           // about the greatest number of units
constexpr int64_t kUnitElements = 32768;  // about the smallest size of a unit
constexpr int64_t kBlocksOfPiece = 8;
constexpr int64_t kLongRow = 256;  // elements; with such rows one by one, their numbers need not be repeated
constexpr int64_t kRanges = 16, kPartials = 1 << 16;  // maximal numbers of ranges and partial results; one of them may
                                                      // be exceeded as long as the other is not

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Step step_of(const Program& program, int32_t i) {
  Step step{i};
  const ProgramNode& node = program.nodes[size_t(i)];
  std::copy(node.operands, node.operands + operands(node.op), step.operands);
  return step;
}

// Numbers of uses of each node's value while steps are combined.
struct Uses {
  std::vector<int> all, absorbed;  // all: by outputs and steps; absorbed: by steps that absorbed the node
  std::vector<char> summed;        // used by row_sum
  std::vector<char> refused;       // a difference or comparison that also has other uses

  Uses(const Program& program, const Steps& steps)
      : all(program.nodes.size()), absorbed(all.size()), summed(all.size()), refused(all.size()) {
    for (int32_t i = 0; i < steps.nodes(); ++i) {
      const ProgramNode& node = program.nodes[size_t(i)];
      if (!steps.is_of_steps(i)) continue;
      for (int j = 0; j < operands(node.op); ++j) {
        const int32_t operand = node.operands[j];
        const bool by_line = steps.is_by_line(i) && !reduces_row(node.op);
        // Values that are computed less often are not absorbed: their use counts as two.
        all[size_t(operand)] += steps.is_of_steps(operand) && steps.is_by_line(operand) == by_line ? 1 : 2;
        if (node.op == ProgramOp::row_sum) summed[size_t(operand)] = true;
      }
    }
    for (const ProgramOutput& output : program.outputs)
      if (!output.is_common()) ++all[size_t(output.node)];
  }
};

// Combines this step with that of an operand if there is a combined operation. The operand must have no other users,
// except that a difference or comparison may have several if all of them absorb it.
void absorb(const Program& program, const Steps& steps, Uses& uses, const std::vector<Step>& of_node, Step& step) {
  const auto op_of = [&](int32_t node) { return program.nodes[size_t(node)].op; };
  // The operand's step if it can be absorbed.
  const auto single = [&](int32_t node, ProgramOp op, Several several = Several::one) {
    const bool can = uses.all[size_t(node)] == 1 && op_of(node) == op && of_node[size_t(node)].several == several;
    return can ? &of_node[size_t(node)] : nullptr;
  };
  const auto shared = [&](int32_t node, ProgramOp op) {
    const bool can = op_of(node) == op && !uses.refused[size_t(node)] && steps.is_of_steps(node) &&
                     of_node[size_t(node)].several == Several::one;
    return can ? &of_node[size_t(node)] : nullptr;
  };
  const auto difference = [&](int32_t node) { return shared(node, ProgramOp::sub); };
  const auto is_zero = [&](int32_t node) {
    const double value = program.nodes[size_t(node)].value;
    return op_of(node) == ProgramOp::constant && value == 0 && !std::signbit(value);
  };
  const auto become = [&](Several several, const int32_t (&with)[3]) {
    step.several = several;
    std::copy(with, with + 3, step.operands);
  };
  const auto take = [&](int32_t node, int times = 1) { uses.absorbed[size_t(node)] += times; };
  const int32_t a = step.operands[0], b = step.operands[1], c = step.operands[2];
  switch (op_of(step.value)) {
    case ProgramOp::add:
      for (int32_t one : {a, b})
        if (const Step* mul = single(one, ProgramOp::mul)) {
          const Step* cdf = single(one == a ? b : a, ProgramOp::normal_cdf);
          const int32_t factor = mul->operands[0], other = mul->operands[1];
          for (int32_t pdf : {factor, other})
            if (cdf && single(pdf, ProgramOp::normal_pdf) && of_node[size_t(pdf)].operands[0] == cdf->operands[0] &&
                (pdf == factor ? other : factor) == cdf->operands[0]) {
              become(Several::cdf_slope, {cdf->operands[0], -1, -1});
              take(pdf);
              take(a);
              return take(b);
            }
          become(Several::mul_add, {mul->operands[0], mul->operands[1], one == a ? b : a});
          return take(one);
        }
      return;
    case ProgramOp::mul:
      if (a == b || uses.summed[size_t(step.value)]) return;
      for (int32_t one : {a, b})
        if (const Step* sub = difference(one)) {
          become(Several::sub_mul, {sub->operands[0], sub->operands[1], one == a ? b : a});
          return take(one);
        }
      for (int32_t one : {a, b})
        if (const Step* cdf = single(one, ProgramOp::normal_cdf)) {
          become(Several::mul_cdf, {one == a ? b : a, cdf->operands[0], -1});
          return take(one);
        } else if (const Step* slope = single(one, ProgramOp::add, Several::cdf_slope)) {
          become(Several::mul_cdf_slope, {one == a ? b : a, slope->operands[0], -1});
          return take(one);
        }
      return;
    case ProgramOp::row_sum:
      if (const Step* mul = single(a, ProgramOp::mul)) {
        take(a);
        const int32_t factor = mul->operands[0], other = mul->operands[1];
        if (const Step* sub = factor == other ? difference(factor) : nullptr) {
          become(Several::row_sum_of_squares, {sub->operands[0], sub->operands[1], -1});
          take(factor, 2);
        } else {
          become(Several::row_sum_of_product, {factor, other, -1});
        }
      } else if (const Step* exp = single(a, ProgramOp::exp, Several::exp_sub)) {
        become(Several::row_sum_of_exp, {exp->operands[0], exp->operands[1], -1});
        take(a);
      } else if (const Step* equal = single(a, ProgramOp::select, Several::equal_or_0)) {
        const int32_t channel = equal->operands[0], other = equal->operands[1];
        for (int32_t one : {channel, other}) {
          const int32_t row = one == channel ? other : channel;
          if (op_of(one) != ProgramOp::channel_index || !only(steps.varies[size_t(row)], Varies::rows)) continue;
          become(Several::of_channel, {row, equal->operands[2], -1});
          return take(a);
        }
      }
      return;
    case ProgramOp::relu:
      if (const Step* add = single(a, ProgramOp::add)) {
        become(Several::add_relu, {add->operands[0], add->operands[1], -1});
        take(a);
      } else if (const Step* add = single(a, ProgramOp::add, Several::mul_add)) {
        become(Several::mul_add_relu, {add->operands[0], add->operands[1], add->operands[2]});
        take(a);
      }
      return;
    case ProgramOp::select: {
      if (const Step* less = single(a, ProgramOp::le); less && is_zero(less->operands[1]) && is_zero(b)) {
        become(Several::positive, {less->operands[0], c, -1});
        return take(a);
      }
      if (const Step* equal = shared(a, ProgramOp::eq); equal && is_zero(c)) {
        become(Several::equal_or_0, {equal->operands[0], equal->operands[1], b});
        take(a);
      }
      return;
    }
    case ProgramOp::sub:
      if (const Step* mul = single(b, ProgramOp::mul)) {
        become(Several::mul_sub, {mul->operands[0], mul->operands[1], a});
        take(b);
      }
      return;
    case ProgramOp::exp:
      if (const Step* sub = difference(a)) {
        become(Several::exp_sub, {sub->operands[0], sub->operands[1], -1});
        take(a);
      }
      return;
    default: return;
  }
}

}  // namespace

Partition::Partition(const ProgramShape& shape, const Program& program) {
  channels_along = shape.rows_are_lines();
  images = channels_along && !program.has_planes ? 1 : shape.images;
  lines = channels_along ? shape.rows() / images : shape.channels;
  width = channels_along ? shape.channels : shape.pixels;
  const bool has_rows = program.needs_rows && channels_along;
  const int64_t blocks = has_rows ? 1 : ceil_div(width, kBlock);
  block_width = ceil_div(width, blocks);
  piece = std::min(blocks, kBlocksOfPiece) * block_width;
  pieces = ceil_div(width, piece);
  block_lines = width > (has_rows ? kLongRow : kBlock) ? 1 : kBlock / width;
  row_by_row = channels_along && block_lines == 1;
  const int64_t units_wanted = std::min(kUnits, shape.numel() / kUnitElements);
  // Each range has a partial result per column.
  const int64_t most = std::max(kRanges, kPartials / width);
  const int64_t wanted = std::clamp<int64_t>(units_wanted / (images * pieces), 1, most);
  range = ceil_div(ceil_div(lines, std::min(wanted, lines)), block_lines) * block_lines;
  ranges = ceil_div(lines, range);
}

Steps::Steps(const Program& program, const Partition& partition)
    : varies(program.varies()),
      buffer(2 * program.nodes.size(), -1),
      channels_along_(partition.channels_along),
      row_by_row_(partition.row_by_row) {
  const int32_t count = nodes();
  std::vector<Step> of_node;
  Uses uses(program, *this);
  for (bool again = true; again;) {
    of_node.clear();
    std::fill(uses.absorbed.begin(), uses.absorbed.end(), 0);
    for (int32_t i = 0; i < count; ++i) {
      of_node.push_back(step_of(program, i));
      if (is_of_steps(i)) absorb(program, *this, uses, of_node, of_node.back());
    }
    again = false;
    for (size_t i = 0; i < uses.all.size(); ++i)
      if (uses.absorbed[i] > 0 && uses.absorbed[i] < uses.all[i]) uses.refused[i] = again = true;
  }

  std::vector<char> is_spread(size_t(count), false);
  const auto spread = [&](int32_t node) {  // the node's value for each element
    const int32_t value = by_element(node);
    if (value != node && !is_spread[size_t(node)]) {
      steps.push_back({value, Several::spread, {node, -1, -1}});
      is_spread[size_t(node)] = true;
    }
    return value;
  };
  for (int32_t i = 0; i < count; ++i) {
    if (!is_of_steps(i) || uses.absorbed[size_t(i)] > 0) continue;
    Step step = of_node[size_t(i)];
    const bool takes = takes_row(program.nodes[size_t(i)].op);
    if (!is_by_line(i) || takes)
      for (int32_t& operand : step.operands)
        if (operand >= 0 && (!is_one(operand) || (takes && step.several == Several::one))) operand = spread(operand);
    steps.push_back(step);
  }
  for (const ProgramOutput& output : program.outputs)
    if (!output.is_common() && !output.is_by_row()) spread(output.node);
  // Loads come first, as stored outputs may overwrite their memory.
  std::stable_partition(steps.begin(), steps.end(), [&](const Step& step) {
    if (step.value >= count) return false;
    const ProgramOp op = program.nodes[size_t(step.value)].op;
    return op == ProgramOp::acc || op == ProgramOp::full;
  });
  place(program);
}

void Steps::place(const Program& program) {
  const int end = int(steps.size());
  std::vector<int> last_use(buffer.size(), -1);
  for (int i = 0; i < end; ++i)
    for (int32_t operand : steps[size_t(i)].operands)
      if (operand >= 0) last_use[size_t(operand)] = i;
  for (const ProgramOutput& output : program.outputs)
    if (!output.is_common())  // read at the end
      last_use[size_t(output.is_by_row() ? output.node : by_element(output.node))] = end;
  for (int32_t node = 0; node < nodes(); ++node)
    if (!is_of_steps(node) && last_use[size_t(node)] >= 0) buffer[size_t(node)] = buffers++;

  std::vector<int> free;
  for (int i = 0; i < end; ++i) {
    const Step& step = steps[size_t(i)];
    const auto release = [&](bool one) {
      for (int32_t operand : step.operands)
        if (operand >= 0 && last_use[size_t(operand)] == i && is_of_steps(operand) &&
            (is_one(operand) && !is_by_line(step.value)) == one) {
          free.push_back(buffer[size_t(operand)]);
          last_use[size_t(operand)] = -1;  // release it once even if it is several operands
        }
    };
    // The result may overwrite an operand's buffer, unless the operand is one number that is read for all elements:
    // operations and scans work element by element, row reductions read a line before they write its number, and
    // spreads begin with the last line.
    release(false);
    int& its = buffer[size_t(step.value)];
    if (free.empty()) {
      its = buffers++;
    } else {
      its = free.back();
      free.pop_back();
    }
    release(true);
  }
}

Partial Partial::none(Reduction kind) {
  constexpr double kLeast = -std::numeric_limits<double>::infinity();
  return {0, kind == Reduction::max ? kLeast : kind == Reduction::prod ? 1.0 : 0.0, 0};
}

void Partial::add(Reduction kind, const Partial& other) {
  if (kind == Reduction::sum) {
    value += other.value;
  } else if (kind == Reduction::prod) {
    value *= other.value;
  } else if (kind == Reduction::max) {
    if (!(value >= other.value) && !std::isnan(value)) value = other.value;
  } else if (other.count > 0) {  // Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm, 1979
    const double all = count + other.count, difference = other.value - value;
    value += difference * (other.count / all);
    squares += other.squares + difference * difference * (count * other.count / all);
    count = all;
  }
}

PartialArray::PartialArray(Reduction kind, int64_t size) : kind(kind), values(size_t(size), Partial::none(kind).value) {
  if (kind != Reduction::moments) return;
  counts.resize(size_t(size));
  squares.resize(size_t(size));
}

void PartialArray::add(int64_t i, const Partial& other) {
  const bool has_moments = kind == Reduction::moments;
  const auto at = size_t(i);
  Partial sum{has_moments ? counts[at] : 0, values[at], has_moments ? squares[at] : 0};
  sum.add(kind, other);
  values[at] = sum.value;
  if (!has_moments) return;
  counts[at] = sum.count;
  squares[at] = sum.squares;
}

void PartialArray::add(int64_t i, const PartialArray& other, int64_t first, int64_t count) {
  if (kind == Reduction::sum) {  // in vectors
    double* const to = values.data() + i;
    const double* const from = other.values.data() + first;
    for (int64_t j = 0; j < count; ++j) to[j] += from[j];
    return;
  }
  const bool has_moments = kind == Reduction::moments;
  for (int64_t j = 0; j < count; ++j) {
    const auto at = size_t(first + j);
    add(i + j, {has_moments ? other.counts[at] : 0, other.values[at], has_moments ? other.squares[at] : 0});
  }
}

Partials::Partials(const ProgramOutput& output, const Partition& partition)
    : per(output.per),
      node(output.node),
      side(per == Per::all                                 ? Side::all
           : (per == Per::row) == partition.channels_along ? Side::along
                                                           : Side::across),
      states(output.kind, side == Side::all     ? partition.units()
                          : side == Side::along ? partition.images * partition.pieces * partition.lines
                                                : partition.images * partition.ranges * partition.width) {}

PartialArray Partials::result(const Partition& partition, int64_t count) const {
  PartialArray sums(kind(), count);
  if (side == Side::all) {
    for (int64_t unit = 0; unit < partition.units(); ++unit) sums.add(0, states, unit, 1);
    return sums;
  }
  // A line's pieces or a column's ranges: for a channel over all images, else within one image.
  const int64_t each = side == Side::along ? partition.lines : partition.width;
  const int64_t parts = side == Side::along ? partition.pieces : partition.ranges;
  for (int64_t image = 0; image < partition.images; ++image)
    for (int64_t part = 0; part < parts; ++part)
      sums.add(per == Per::channel ? 0 : image * each, states, (image * parts + part) * each, each);
  return sums;
}

}  // namespace reformer::programs
