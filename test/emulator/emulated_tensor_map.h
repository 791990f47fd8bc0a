// What a TensorMap holds in the emulator: plain numbers, where a GPU's driver puts its own. Those that plan launches
// for the emulator (test/hip/tma_launch.cpp) make it, emulated_tma.cpp reads it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>

#include "hip/device/tensor_map.h"

namespace reformer::emulator {

// How windows pass over an image, w and h: from `first` on and before its size + `end`.
struct Windows {
  int64_t pitches[3];  // bytes: of w, h and images
  int32_t first[2], end[2], steps[2];
  int32_t pixels;  // of a box
};

// A tensor of elements of 2 bytes: innermost first, and 1 beyond its rank. Dense, with the box that is copied of it, or
// images of which windows are.
struct Tensor {
  static constexpr int kMostDimensions = 4;
  unsigned char* memory;
  int64_t sizes[kMostDimensions];
  bool has_windows;
  union {
    int32_t box[kMostDimensions];
    Windows windows;
  };
};
static_assert(sizeof(Tensor) <= sizeof(TensorMap));

// Refuses what the driver does.
inline TensorMap encode(const void* memory, std::initializer_list<int64_t> sizes, std::initializer_list<int32_t> box) {
  Tensor tensor{static_cast<unsigned char*>(const_cast<void*>(memory)), {1, 1, 1, 1}, false, {{1, 1, 1, 1}}};
  const auto is_no_size = [](int64_t size) { return size < 1; };
  const auto is_no_box = [](int32_t size) { return size < 1 || size > 256; };
  if (sizes.size() != box.size() || sizes.size() < 2 || sizes.size() > Tensor::kMostDimensions)
    throw std::runtime_error("a tensor map needs 2 to 4 sizes, and as many of its box");
  if (std::any_of(sizes.begin(), sizes.end(), is_no_size) || std::any_of(box.begin(), box.end(), is_no_box))
    throw std::runtime_error("a tensor map's sizes are at least 1, and those of its box at most 256");
  if (reinterpret_cast<uintptr_t>(memory) % 16 || *sizes.begin() % 8 || *box.begin() != 64)
    throw std::runtime_error("a tensor map's lines begin at multiples of 16 bytes, and its boxes' have 64 elements");
  std::copy(sizes.begin(), sizes.end(), tensor.sizes);
  std::copy(box.begin(), box.end(), tensor.box);
  TensorMap map{};
  memcpy(&map, &tensor, sizeof(tensor));
  return map;
}

// The same of cuTensorMapEncodeIm2col. sizes: channels, w, h, images.
inline TensorMap encode_windows(const void* memory, const int64_t (&sizes)[4], const Windows& windows) {
  Tensor tensor{static_cast<unsigned char*>(const_cast<void*>(memory)), {}, true, {}};
  for (int i = 0; i < 4; ++i) {
    if (sizes[i] < 1 || sizes[i] > int64_t{1} << 32) throw std::runtime_error("a tensor map's sizes are at least 1");
    tensor.sizes[i] = sizes[i];
  }
  for (const int64_t pitch : windows.pitches)
    if (reinterpret_cast<uintptr_t>(memory) % 16 || pitch % 16 || pitch < 1 || pitch >= int64_t{1} << 40)
      throw std::runtime_error("a tensor map's pixels begin at multiples of 16 bytes");
  for (int i = 0; i < 2; ++i) {
    const int32_t first = windows.first[i], end = windows.end[i];
    if (first < -128 || first > 127 || end < -128 || end > 127)
      throw std::runtime_error("windows begin at most 128 pixels outside of an image");
    if (sizes[1 + i] + end <= first) throw std::runtime_error("there are no windows");
    if (windows.steps[i] < 1 || windows.steps[i] > 8) throw std::runtime_error("windows are 1 to 8 pixels apart");
  }
  if (windows.pixels < 1 || windows.pixels > 1024) throw std::runtime_error("a box has 1 to 1024 pixels");
  tensor.windows = windows;
  TensorMap map{};
  memcpy(&map, &tensor, sizeof(tensor));
  return map;
}

inline Tensor decode(const TensorMap& map) {
  Tensor tensor;
  memcpy(&tensor, &map, sizeof(tensor));
  return tensor;
}

}  // namespace reformer::emulator
