#include "placement.h"

#include <algorithm>

namespace reformer {
namespace {

template <size_t kMost>
int64_t place(const std::array<Placement::Digit, kMost>& digits, int count, int64_t number) {
  int64_t at = 0;
  for (int i = 0; i + 1 < count; ++i) {
    at += number % digits[size_t(i)].count * digits[size_t(i)].stride;
    number /= digits[size_t(i)].count;
  }
  return count ? at + number * digits[size_t(count - 1)].stride : 0;
}

// Appends a digit, or extends the last one if the new digit continues it.
template <size_t kMost>
bool add(std::array<Placement::Digit, kMost>& digits, int8_t& count, int64_t size, int64_t stride) {
  if (count && digits[size_t(count - 1)].stride * digits[size_t(count - 1)].count == stride) {
    digits[size_t(count - 1)].count *= size;
    return true;
  }
  if (size_t(count) == kMost) return false;
  digits[size_t(count++)] = {size, stride};
  return true;
}

}  // namespace

int64_t Placement::line(int64_t number) const { return place(of_line, line_digits, number); }
int64_t Placement::column(int64_t number) const { return place(of_column, column_digits, number); }

bool Placement::repeats() const {
  const auto is_one = [](const Digit& digit) { return digit.count > 1 && digit.stride == 0; };
  return std::any_of(of_line.begin(), of_line.begin() + line_digits, is_one) ||
         std::any_of(of_column.begin(), of_column.begin() + column_digits, is_one);
}

int64_t Placement::period() const {
  int last = line_digits;
  while (last > 0 && of_line[size_t(last) - 1].stride == 0) --last;
  if (last == line_digits || last == 0) return 0;  // not periodic, or there is only one line
  int64_t lines = 1;
  for (int i = 0; i < last; ++i) lines *= of_line[size_t(i)].count;
  return lines;
}

bool find_placement(const int64_t* sizes, const int64_t* strides, size_t dimensions, int64_t width, Placement& found) {
  found = {};
  int64_t columns = 1;
  for (size_t d = dimensions; d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (!sizes[d] || sizes[d] > INT32_MAX || strides[d] < 0 || strides[d] > INT32_MAX) return false;
    if (columns < width) {
      if (sizes[d] > width / columns) return false;
      columns *= sizes[d];
      if (width % columns || !add(found.of_column, found.column_digits, sizes[d], strides[d])) return false;
    } else if (!add(found.of_line, found.line_digits, sizes[d], strides[d])) {
      return false;
    }
  }
  if (!found.line_digits) found.of_line[size_t(found.line_digits++)] = {1, 0};
  if (columns != width) return false;
  if (!found.column_digits || found.of_column[0].stride == 1) return true;
  if (found.column_digits == 2 && found.of_column[1].stride != 0) return false;
  return found.of_column[0].stride > 1 && found.of_line[0].stride == 1;
}

}  // namespace reformer
