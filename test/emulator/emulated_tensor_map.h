// What a TensorMap holds in the emulator: plain numbers, where a GPU's driver puts its own. Those that plan launches
// for the emulator (test/hip/tma_plan.cpp) make it, emulated_tma.cpp reads it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>

#include "../../csrc/hip/device/tensor_map.h"

namespace reformer::emulator {

// A dense tensor of elements of 2 bytes, and the box that is copied of it: innermost first, and 1 beyond its rank.
struct Tensor {
  static constexpr int kMostDimensions = 4;
  unsigned char* memory;
  int64_t sizes[kMostDimensions];
  int32_t box[kMostDimensions];
};
static_assert(sizeof(Tensor) <= sizeof(TensorMap));

// Refuses what the driver does.
inline TensorMap encode(const void* memory, std::initializer_list<int64_t> sizes, std::initializer_list<int32_t> box) {
  Tensor tensor{static_cast<unsigned char*>(const_cast<void*>(memory)), {1, 1, 1, 1}, {1, 1, 1, 1}};
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

inline Tensor decode(const TensorMap& map) {
  Tensor tensor;
  memcpy(&tensor, &map, sizeof(tensor));
  return tensor;
}

}  // namespace reformer::emulator
