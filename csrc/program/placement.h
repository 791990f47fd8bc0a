// Placement of a tensor's elements in memory if their order is not the result's, or if the tensor is a slice of another
// one, or broadcast. The result is viewed as lines of columns, where a line is a row of channels. The numbers of line
// and column are written as mixed-radix numbers; each digit has a stride, and the address of element (line, column) is
// the sum of digits times strides. Either columns are adjacent in memory, or lines are: then the tensor is transposed.
// A few columns of a transposed tensor may be adjacent, too, and lines of so many columns follow one another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace reformer {

struct Placement {
  struct Digit {
    int64_t count, stride;
    bool operator==(const Digit& other) const { return count == other.count && stride == other.stride; }
  };
  static constexpr int kMostOfLine = 6, kMostOfColumn = 2;
  static constexpr int64_t kMostPacked = 4;  // adjacent columns of a transposed tensor
  // The least significant digit first. The column's first digit has stride 1; a tensor whose columns are all equal
  // has no column digits. In a transposed tensor the line's first digit has stride 1, and the column is a single digit
  // with another stride, and maybe one of stride 0 for columns that repeat; or the column's first digit has stride 1,
  // and its count is the stride of the line's.
  std::array<Digit, kMostOfLine> of_line{};
  std::array<Digit, kMostOfColumn> of_column{};
  int8_t line_digits = 0, column_digits = 0;

  bool operator==(const Placement& other) const {
    return of_line == other.of_line && of_column == other.of_column && line_digits == other.line_digits &&
           column_digits == other.column_digits;
  }
  int64_t line(int64_t number) const;
  int64_t column(int64_t number) const;
  // True if several elements share one place.
  bool repeats() const;
  // The number of lines after which the same elements repeat; 0 if they don't.
  int64_t period() const;
  bool is_transposed() const {
    if (column_digits && of_column[0].stride != 1) return true;
    const int64_t columns = of_column[0].count;
    return column_digits == 2 && columns <= kMostPacked && of_line[0].stride == columns && of_line[0].count > 1;
  }
  // Number of adjacent columns of a transposed tensor.
  int64_t packed() const { return is_transposed() && of_column[0].stride == 1 ? of_column[0].count : 1; }
  // True if a transposed tensor's columns repeat.
  bool repeats_columns() const { return is_transposed() && packed() == 1 && column_digits == 2; }
  // Number of adjacent elements beginning at any multiple of so many columns, or lines.
  int64_t adjacent_columns() const { return column_digits && of_column[0].stride == 1 ? of_column[0].count : 1; }
  int64_t adjacent_lines() const { return is_transposed() ? of_line[0].count : 1; }
};

// Finds the placement of a tensor whose dimensions, outermost first, run through the result's elements in memory order.
// Lines have `width` columns, 1 for a tensor with one element per line. Returns false if no kernel can read such a
// tensor.
bool find_placement(const int64_t* sizes, const int64_t* strides, size_t dimensions, int64_t width, Placement& found);

}  // namespace reformer
