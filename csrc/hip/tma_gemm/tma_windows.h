// Shared by the TMA kernels for filters of any size and the host.
#pragma once

#include "tma_gemm.h"

namespace reformer {

// input_grad with strides has classes of pixels that read different taps: up to two classes along each axis.
constexpr int kTmaMostClasses = 4;

// The taps of a class along one axis: tap i is the filter's `first + i * step`; it reads the source `offset + i *
// offset_step` pixels after the window's beginning.
struct TmaTaps {
  int count, first, step, offset, offset_step;
};

struct TmaClass {
  TmaTaps h, w;
  int steps;
  int tiles;                 // tiles of rows, counted in clusters
  Divider by_width;          // taps per line
  Divider by_image_windows;  // windows per image, and per line
  Divider by_line_windows;
};

// The products of TmaGemmArgs, in NHWC, with one operand read by windows: a box has 64 channels of the pixels that one
// tap of the filter meets in as many windows.
//
//               rows         columns   depth      a                   b
//   forward     pixels of y  k         taps, c    x by windows        the filter, along the depth
//   input_grad  pixels of x  c         taps, k    y by windows        the filter, along columns
//   weight_grad k            taps, c   pixels     y, along rows       x by windows, along columns
//
// The channels of each tap are rounded up to 64: to steps, or to panels of columns. In a strided input_grad, rows are
// the pixels of one class. Tiles of the class with the most taps come first, and classes are also stored by windows.
struct TmaWindowsArgs : TmaGemmArgs {
  TmaClass classes[kTmaMostClasses];
  int scattered;         // 1: there are several classes
  int first_h, first_w;  // where the first window begins in the source
  int window_step_h, window_step_w;
  Divider by_channels;   // steps or panels per tap
  int panels, channels;  // weight_grad: panels of all taps; channels per tap
};
// The arguments of input_grad.
struct TmaClassesArgs : TmaWindowsArgs {
  TensorMap other_sources[kTmaMostClasses - 1],
      other_results[kTmaMostClasses - 1];  // for the classes after the first one
};

}  // namespace reformer
