#include "plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace reformer::epilogue {
namespace {

constexpr int64_t kUnits = 128;  // about as many, where there is work for them

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Cut::Cut(const EpilogueShape& shape) {
  channels_along = shape.layout == Layout::nhwc || shape.pixels == 1;
  pictures = channels_along ? 1 : shape.pictures;
  lines = channels_along ? shape.rows() : shape.channels;
  width = channels_along ? shape.channels : shape.pixels;
  pieces = ceil_div(width, kBlock);
  piece = ceil_div(width, pieces);
  block_lines = pieces > 1 ? 1 : kBlock / width;
  const int64_t wanted = std::max<int64_t>(1, kUnits / (pictures * pieces));
  range = ceil_div(ceil_div(lines, std::min(wanted, lines)), block_lines) * block_lines;
  ranges = ceil_div(lines, range);
}

Places::Places(const Epilogue& program, bool channels_along) {
  const int count = int(program.nodes.size());
  std::vector<int> last_use(size_t(count), -1);
  for (int i = 0; i < count; ++i) {
    const EpilogueNode& node = program.nodes[size_t(i)];
    bool same = true;
    switch (node.op) {
      case EpilogueOp::scalar:
      case EpilogueOp::constant:
      case EpilogueOp::rows:
      case EpilogueOp::columns: break;
      case EpilogueOp::channel: same = channels_along; break;
      case EpilogueOp::acc:
      case EpilogueOp::full:
      case EpilogueOp::row:
      case EpilogueOp::random: same = false; break;
      default:
        for (int j = 0; j < operands(node.op); ++j) same = same && constant[size_t(node.operands[j])];
    }
    constant.push_back(same);
    for (int j = 0; j < operands(node.op); ++j) last_use[size_t(node.operands[j])] = i;
  }
  for (const EpilogueOutput& output : program.outputs) last_use[size_t(output.node)] = count;  // read at the end

  std::vector<int> free;
  for (int i = 0; i < count; ++i) {
    const EpilogueNode& node = program.nodes[size_t(i)];
    // An operand's buffer may be the result's: operations go from element to element.
    if (!constant[size_t(i)])
      for (int j = 0; j < operands(node.op); ++j) {
        const size_t operand = size_t(node.operands[j]);
        if (last_use[operand] == i && !constant[operand]) {
          free.push_back(buffer[operand]);
          last_use[operand] = -1;  // once, though it may be several operands
        }
      }
    if (constant[size_t(i)] || free.empty()) {
      buffer.push_back(buffers++);
    } else {
      buffer.push_back(free.back());
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

Partials::Partials(const EpilogueOutput& output, const Cut& cut) : kind(output.kind), per(output.per) {
  const bool along = (per == Per::channel) != cut.channels_along;
  side = per == Per::all ? Side::all : along ? Side::along : Side::across;
  const int64_t size = side == Side::all     ? cut.units()
                       : side == Side::along ? cut.pictures * cut.pieces * cut.lines
                                             : cut.pictures * cut.ranges * cut.width;
  values.assign(size_t(size), Partial::none(kind));
}

Partial Partials::result(const Cut& cut, const EpilogueShape& shape, int64_t i) const {
  Partial sum = Partial::none(kind);
  const auto add_all = [&](int64_t first, int64_t count, int64_t step) {
    for (int64_t j = 0; j < count; ++j) sum.add(kind, values[size_t(first + j * step)]);
  };
  if (side == Side::all) {
    add_all(0, int64_t(values.size()), 1);
  } else if (side == Side::along) {  // a line's pieces; of a channel in NCHW, in all pictures
    add_all(i, cut.pictures * cut.pieces, cut.lines);
  } else if (per == Per::channel) {  // a column's ranges
    add_all(i, cut.ranges, cut.width);
  } else {  // a pixel in NCHW
    add_all(i / shape.pixels * cut.ranges * cut.width + i % shape.pixels, cut.ranges, cut.width);
  }
  return sum;
}

}  // namespace reformer::epilogue
