// Shared by the max pooling kernels and the host.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kMaxPoolThreads = 128;
constexpr int kMaxPoolTile = 2;   // rows and columns of an image whose gradients a thread computes
constexpr int kMostPlaces = 255;  // per window; the next number stands for no position

// The rows of images, or their columns.
struct PoolAxis {
  int size, outputs, window, stride, padding, dilation;
  Divider by_stride, by_dilation;
};

// Images are [images][rows][columns][channels]; in NCHW each plane is an image of one channel. A thread has adjacent
// channels of a result, or of a tile of gradients. Threads are numbered by the `by_*`, the last dimension first.
struct MaxPoolArgs {
  const void* from;  // images, or the results' gradients
  void* places;      // position of each result's maximum in its window, counted row by row
  void* to;          // results, or the images' gradients
  PoolAxis rows, columns;
  Divider by_channels, by_columns, by_rows;
  int channels, images;
  int of_image, of_result;  // elements and results per image
  int images_each;          // per index of a block along y
};

}  // namespace reformer
