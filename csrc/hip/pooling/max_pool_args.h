// Shared by the kernels of max pooling and their host.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kMaxPoolThreads = 128;
constexpr int kMaxPoolTile = 2;   // rows and columns of images whose gradients a thread has
constexpr int kMostPlaces = 255;  // of a window: one number more means none of them

// The rows of images, or their columns.
struct PoolAxis {
  int size, outputs, window, stride, padding, dilation;
  Divider by_stride, by_dilation;
};

// Images are [images][rows][columns][channels]; in the order NCHW each plane is one of one channel. A thread has some
// adjacent channels of a result, or of a tile of gradients; these are counted by `by_*`, the last dimension first.
struct MaxPoolArgs {
  const void* from;  // images, or the results' gradients
  void* places;      // for each result that of the maximum in its window, by rows
  void* to;          // results, or the images' gradients
  PoolAxis rows, columns;
  Divider by_channels, by_columns, by_rows;
  int channels, images;
  int of_image, of_result;  // an image's elements, and its results
  int images_each;          // of a block's place along y
};

}  // namespace reformer
