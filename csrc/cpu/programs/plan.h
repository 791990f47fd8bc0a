// How a program is run on a CPU: its result as matrices, split into units of work and blocks of elements, and the
// places of its values while a block is computed.
#pragma once

#include <vector>

#include "program/program.h"

namespace reformer::programs {

// Elements computed at once: a program's values of a block stay in the level-1 cache. A row that is needed as a whole
// may be longer.
constexpr int64_t kBlock = 512;

// The result as `images` matrices of lines, each dense in memory: in NCHW a line is a channel of an image and its
// elements are pixels; in NHWC all pixels are the lines of one matrix, or those of an image if the program has planes,
// and the elements are channels. A unit is a piece of the width of a range of a matrix's lines; one thread computes it
// line by line, in blocks of one or more lines or of a part of one: what it reads of a line is adjacent, as much as the
// processor fetches ahead. The partition depends on the shape only, so sums are the same for any number of threads.
struct Partition {
  int64_t images, lines, width;
  int64_t piece, pieces;  // of the width
  int64_t range, ranges;  // of lines
  int64_t block_lines, block_width;
  bool channels_along;  // a line's elements are channels
  bool row_by_row;      // and a block is of one line, so that a number of it can be read for all of its elements

  // Blocks have whole rows if the program needs them.
  Partition(const ProgramShape& shape, const Program& program);
  int64_t units() const { return images * pieces * ranges; }
  int64_t block() const { return block_lines * block_width; }  // elements
  int64_t blocks_of_piece() const { return (piece + block_width - 1) / block_width; }
  // Elements of memory for a value: operations on vectors go beyond its end, and each value begins a line of the cache.
  int64_t room() const { return (block() + 127) / 64 * 64; }
};

// A step for a block: an operation of a program, several in one pass over the block, or a spread (see Steps).
enum class Several : uint8_t {
  one,
  mul_add,             // a * b + c
  sub_mul,             // (a - b) * c
  add_relu,            // relu(a + b)
  mul_add_relu,        // relu(a * b + c)
  positive,            // select(a <= 0, 0, b)
  mul_sub,             // c - a * b
  equal_or_0,          // select(a == b, c, 0)
  exp_sub,             // exp(a - b)
  mul_cdf,             // a * normal_cdf(b)
  cdf_slope,           // normal_cdf(a) + a * normal_pdf(a), the derivative of a * normal_cdf(a)
  mul_cdf_slope,       // a * (normal_cdf(b) + b * normal_pdf(b))
  row_sum_of_product,  // row_sum(a * b)
  row_sum_of_squares,  // row_sum((a - b) * (a - b))
  row_sum_of_exp,      // row_sum(exp(a - b))
  of_channel,          // row_sum(select(channel_index() == a, b, 0)), where a is a row's
  spread,              // a line's number, for each of its elements
};
struct Step {
  int32_t value;  // that is computed
  Several several = Several::one;
  int32_t operands[3] = {-1, -1, -1};
};

// The steps of a block, in order, and the buffer of each value that has one (else -1). Values that don't change from
// row to row are computed once, for all channels, of each image if they differ there; those of them that steps need
// have buffers too. Where a line is a row, what changes from row to row only is computed once a line. Its spread, which
// repeats it for each element, is another value: values have their nodes' numbers, and spreads those that follow.
struct Steps {
  std::vector<Varies> varies;  // of each node
  std::vector<int> buffer;
  int buffers = 0;
  std::vector<Step> steps;

  Steps(const Program& program, const Partition& partition);
  int32_t nodes() const { return int32_t(varies.size()); }
  bool is_by_line(int32_t value) const {
    return channels_along_ && value < nodes() && varies[size_t(value)] == Varies::rows;
  }
  // True if one number stands for all of a block.
  bool is_one(int32_t value) const {
    return row_by_row_ && value < nodes() && (varies[size_t(value)] | Varies::rows) == Varies::rows;
  }
  // A node's value for each element.
  int32_t by_element(int32_t node) const { return is_by_line(node) ? nodes() + node : node; }

  // Values that are computed in a block, not before all of them.
  bool is_of_steps(int32_t value) const { return value >= nodes() || by_row(varies[size_t(value)]); }

 private:
  void place(const Program& program);

  bool channels_along_, row_by_row_;
};

// The state of a reduction after some of its elements: of a sum, or the largest value, `value` alone; of moments
// the number of elements, their mean and the sum of squared differences from it.
struct Partial {
  double count, value, squares;

  static Partial none(Reduction kind);
  void add(Reduction kind, const Partial& other);
};

// Partial results of a reduction of one of a program's values, for each unit that has some.
struct Partials {
  Reduction kind;
  Per per;
  int32_t node;
  // along: one for each line of a piece; across: one for each column of a range; all: one for each unit.
  enum class Side : uint8_t { along, across, all } side;
  std::vector<Partial> values;

  Partials(const ProgramOutput& output, const Partition& partition);
  bool is_of(const ProgramOutput& output) const {
    return kind == output.kind && per == output.per && node == output.node;
  }
  Partial* of_line(const Partition& partition, int64_t image, int64_t piece, int64_t line) {
    return &values[size_t((image * partition.pieces + piece) * partition.lines + line)];
  }
  Partial* of_column(const Partition& partition, int64_t image, int64_t range, int64_t column) {
    return &values[size_t((image * partition.ranges + range) * partition.width + column)];
  }
  // Element i of what the reduction gives, from all that belongs to it, in a fixed order.
  Partial result(const Partition& partition, int64_t i) const;
};

}  // namespace reformer::programs
