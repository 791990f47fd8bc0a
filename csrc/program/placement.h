// Where the elements of a tensor lie that has not the result's order of memory, or is a part of another tensor, or
// repeats elements. The result is seen as lines of columns, which are rows of channels: element (line, column) lies at
// the sum of what its line's and its column's digits give, mixed-radix numbers of which each digit has a stride.
// Columns are adjacent, or lines are: then the tensor is transposed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace reformer {

struct Placement {
  struct Digit {
    int64_t count, stride;
  };
  static constexpr int kMostOfLine = 4, kMostOfColumn = 2;
  // The least significant first. A column's first one has stride 1; what is the same for all columns has none. The
  // line's first one has stride 1 in a transposed tensor, whose column is one digit with another.
  std::array<Digit, kMostOfLine> of_line{};
  std::array<Digit, kMostOfColumn> of_column{};
  int8_t line_digits = 0, column_digits = 0;

  int64_t line(int64_t number) const;
  int64_t column(int64_t number) const;
  // True if elements lie at one place.
  bool repeats() const;
  // After so many lines the same elements follow again; 0: they do not.
  int64_t period() const;
  bool is_transposed() const { return column_digits == 1 && of_column[0].stride != 1; }
  // Adjacent elements, beginning with any multiple of so many columns, or of so many lines.
  int64_t adjacent_columns() const { return column_digits && !is_transposed() ? of_column[0].count : 1; }
  int64_t adjacent_lines() const { return is_transposed() ? of_line[0].count : 1; }
};

// The placement of a tensor whose dimensions, the outermost first, run through the result's elements in the order of
// its memory; lines have `width` columns, 1 for what has one element a line. False: no kernel reads such a tensor.
bool find_placement(const int64_t* sizes, const int64_t* strides, size_t dimensions, int64_t width, Placement& found);

}  // namespace reformer
