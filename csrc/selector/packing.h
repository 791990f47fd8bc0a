// PyTorch's weights packed into one piece of memory for gamma_body.h.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "gamma.h"

namespace reformer {

struct FreeFloats {
  void operator()(float* memory) const { std::free(memory); }
};
using FloatMemory = std::unique_ptr<float[], FreeFloats>;

FloatMemory aligned_floats(int64_t count);  // aligned to 64 bytes, which `count` must fill

// Packs the tensors one by one. A first pass without memory only counts the floats that the second pass needs.
class Packer {
 public:
  Packer(const float* const* tensors, float* memory) : tensors_(tensors), memory_(memory) {}

  int64_t floats() const { return used_; }

  const float* copy(int64_t count);
  PackedLinear linear(int32_t inputs, int32_t outputs);
  // The tensors of each block: taps [3, width], qkv.weight [3 width, width], qkv.bias, up.weight [hidden, width],
  // up.bias, down.weight [width, hidden], down.bias.
  PackedBlocks blocks(int32_t width, int32_t hidden, int32_t count);

 private:
  float* take(int64_t count);

  const float* const* tensors_;
  float* memory_;
  int64_t used_ = 0;
};

// pack(Packer&) packs all tensors and is called for both passes; the second call's views point into the result.
template <class Pack>
FloatMemory pack_into_memory(const float* const* tensors, const Pack& pack) {
  Packer counting(tensors, nullptr);
  pack(counting);
  FloatMemory memory = aligned_floats(counting.floats());
  Packer packing(tensors, memory.get());
  pack(packing);
  return memory;
}

// Throw std::invalid_argument. `whose`: the owner for the message, e.g. "a selector".
void check_between(const std::string& whose, const char* what, int64_t value, int64_t most);  // 1 to most
void check_blocks(const std::string& whose, int32_t width, int32_t hidden, int32_t count);

}  // namespace reformer
