#include "packing.h"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace reformer {
namespace {

int64_t padded(int64_t floats) { return (floats + kPackStep - 1) / kPackStep * kPackStep; }

void check_multiple(const std::string& whose, const char* what, int32_t value, int32_t most) {
  if (value < kPackStep || value > most || value % kPackStep)
    throw std::invalid_argument(whose + "'s " + what + " must be a multiple of " + std::to_string(kPackStep) +
                                " up to " + std::to_string(most) + ", got " + std::to_string(value));
}

}  // namespace

FloatMemory aligned_floats(int64_t count) {
  FloatMemory memory(static_cast<float*>(std::aligned_alloc(64, size_t(count) * sizeof(float))));
  if (!memory) throw std::bad_alloc();
  return memory;
}

const float* Packer::copy(int64_t count) {
  const float* from = *tensors_++;
  float* to = take(count);
  if (to) std::copy(from, from + count, to);
  return to;
}

PackedLinear Packer::linear(int32_t inputs, int32_t outputs) {
  PackedLinear layer{nullptr, nullptr, inputs, outputs, int32_t(padded(outputs))};
  const float* from = *tensors_++;
  if (float* to = take(int64_t{inputs} * layer.step)) {
    std::fill(to, to + int64_t{inputs} * layer.step, 0.0f);
    for (int32_t out = 0; out < outputs; ++out)
      for (int32_t in = 0; in < inputs; ++in) to[int64_t{in} * layer.step + out] = from[int64_t{out} * inputs + in];
    layer.matrix = to;
  }
  layer.bias = copy(outputs);
  return layer;
}

PackedBlocks Packer::blocks(int32_t width, int32_t hidden, int32_t count) {
  PackedBlocks packed{width, hidden, count, {}};
  for (int32_t i = 0; i < count; ++i) {
    PackedBlock& block = packed.block[i];
    block.taps = copy(3 * width);
    block.qkv = linear(width, 3 * width);
    block.up = linear(width, hidden);
    block.down = linear(hidden, width);
  }
  return packed;
}

float* Packer::take(int64_t count) {
  float* place = memory_ ? memory_ + used_ : nullptr;
  used_ += padded(count);
  return place;
}

void check_between(const std::string& whose, const char* what, int64_t value, int64_t most) {
  if (value < 1 || value > most)
    throw std::invalid_argument(whose + " has 1 to " + std::to_string(most) + " " + what + ", got " +
                                std::to_string(value));
}

void check_blocks(const std::string& whose, int32_t width, int32_t hidden, int32_t count) {
  check_multiple(whose, "width", width, kMaxWidth);
  check_multiple(whose, "hidden width", hidden, kMaxHidden);
  check_between(whose, "blocks", count, kMaxBlocks);
}

}  // namespace reformer
