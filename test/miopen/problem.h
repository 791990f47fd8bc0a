// A problem of convolution, read from its descriptors by their roles.
#pragma once

#include <string>

#include "objects.h"

namespace stub {

enum class Direction { forward, backward_data, backward_weights };

struct Problem {
  Direction direction;
  int type;
  Layout layout;
  int64_t n, c, h, w, k, r, s, out_h, out_w, groups;  // c and k are those of all groups
  std::array<int, 2> pad, stride, dilation;
  bool is_deterministic;
  int fp16_alternative;

  std::string key() const;  // the find-db's

  // MIOpen's words: a gradient's input is the output's gradient, the output is what belongs to x.
  bool is_forward() const { return direction == Direction::forward; }
  int64_t in_channels() const { return is_forward() ? c : k; }
  int64_t in_height() const { return is_forward() ? h : out_h; }
  int64_t in_width() const { return is_forward() ? w : out_w; }
  int64_t out_channels() const { return is_forward() ? k : c; }
  int64_t out_height() const { return is_forward() ? out_h : h; }
  int64_t out_width() const { return is_forward() ? out_w : w; }

  int64_t x_elements() const { return n * c * h * w; }
  int64_t w_elements() const { return k * (c / groups) * r * s; }
  int64_t y_elements() const { return n * k * out_h * out_w; }
};

int64_t bytes_of(int type);

// x, w and y are what belongs to the input, the filter and the output, be it a gradient or not.
Problem problem_of(Direction direction, const Tensor& x, const Tensor& w, const Convolution& convolution,
                   const Tensor& y);

}  // namespace stub
