// How a program runs on a CPU: its result as matrices, split into units of work and blocks of elements, and the buffers
// of its values while a block is computed.
#pragma once

#include <vector>

#include "program/program.h"

namespace reformer::programs {

// Elements per block: the program's values of a block stay in the first-level cache. If whole rows are needed, blocks
// may be larger.
constexpr int64_t kBlock = 2048;

// The result as `images` matrices of lines, each dense in memory. In NCHW a line is a channel of an image, and its
// elements are pixels. In NHWC a line is a pixel, and its elements are channels; all pixels form one matrix, or those
// of each image if the program has planes. A unit is a piece of the lines' width times a range of a matrix's lines. One
// thread computes it line by line, in blocks of one or more lines or of a part of a line, so that memory is read in
// runs that suit the processor's prefetching. The partition depends only on the shape, so sums are equal for any number
// of threads.
struct Partition {
  int64_t images, lines, width;
  int64_t piece, pieces;  // of the width
  int64_t range, ranges;  // of lines
  int64_t block_lines, block_width;
  bool channels_along;  // a line's elements are channels
  bool row_by_row;      // also, blocks have one line, so that one number of the line can be read for all its elements

  // Blocks have whole rows if the program needs them.
  Partition(const ProgramShape& shape, const Program& program);
  int64_t units() const { return images * pieces * ranges; }
  int64_t block() const { return block_lines * block_width; }  // elements
  int64_t blocks_of_piece() const { return (piece + block_width - 1) / block_width; }
  // Elements of memory per value: vector operations go beyond its end, and each value begins a cache line.
  int64_t room() const { return (block() + 127) / 64 * 64; }
};

// A step for a block: an operation of a program, several operations in one pass over the block, or a spread (see
// Steps).
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
  of_channel,          // row_sum(select(channel_index() == a, b, 0)), where a is a value per row
  spread,              // repeats a line's number for each of its elements
};
struct Step {
  int32_t value;  // the value that is computed
  Several several = Several::one;
  int32_t operands[3] = {-1, -1, -1};
};

// The steps of a block in order, and the number of each value's buffer (-1: none). Values that don't vary from row to
// row are computed once beforehand, for all channels, and for each image if they vary between images; those that steps
// need have buffers, too. If a line is a row, values that vary only from row to row are computed once per line. The
// spread of such a value, which repeats it for each element, is another value: values are numbered like their nodes,
// and spreads follow.
struct Steps {
  std::vector<Varies> varies;  // for each node
  std::vector<int> buffer;
  int buffers = 0;
  std::vector<Step> steps;

  Steps(const Program& program, const Partition& partition);
  int32_t nodes() const { return int32_t(varies.size()); }
  bool is_by_line(int32_t value) const {
    return channels_along_ && value < nodes() && varies[size_t(value)] == Varies::rows;
  }
  // True if one number stands for the whole block.
  bool is_one(int32_t value) const {
    return row_by_row_ && value < nodes() && (varies[size_t(value)] | Varies::rows) == Varies::rows;
  }
  // The value with one number for each element of a node: the node itself, or its spread.
  int32_t by_element(int32_t node) const { return is_by_line(node) ? nodes() + node : node; }

  // True if the value is computed in each block, not once beforehand.
  bool is_of_steps(int32_t value) const { return value >= nodes() || by_row(varies[size_t(value)]); }

 private:
  void place(const Program& program);

  bool channels_along_, row_by_row_;
};

// Intermediate state of a reduction: for sums, maxima and products only `value`; for moments the number of elements,
// their mean, and the sum of squared differences from it.
struct Partial {
  double count, value, squares;

  static Partial none(Reduction kind);
  void add(Reduction kind, const Partial& other);
};

// Such states, in an array for each of their numbers.
struct PartialArray {
  Reduction kind;
  std::vector<double> values, counts, squares;  // the latter two for moments alone

  PartialArray(Reduction kind, int64_t size);
  void add(int64_t i, const Partial& other);
  // Adds `count` adjacent states of another array.
  void add(int64_t i, const PartialArray& other, int64_t first, int64_t count);
};

// Partial results of a reduction of a program's value.
struct Partials {
  Per per;
  int32_t node;
  // along: one for each line of a piece; across: one for each column of a range; all: one for each unit.
  enum class Side : uint8_t { along, across, all } side;
  PartialArray states;

  Partials(const ProgramOutput& output, const Partition& partition);
  Reduction kind() const { return states.kind; }
  bool is_of(const ProgramOutput& output) const {
    return kind() == output.kind && per == output.per && node == output.node;
  }
  static int64_t of_line(const Partition& partition, int64_t image, int64_t piece, int64_t line) {
    return (image * partition.pieces + piece) * partition.lines + line;
  }
  static int64_t of_column(const Partition& partition, int64_t image, int64_t range, int64_t column) {
    return (image * partition.ranges + range) * partition.width + column;
  }
  // The `count` elements of the reduction's result, combined from its partial results in a fixed order.
  PartialArray result(const Partition& partition, int64_t count) const;
};

}  // namespace reformer::programs
