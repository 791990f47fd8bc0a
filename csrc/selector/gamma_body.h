// Γ-blocks on a sequence of any length. Included by an ISA body; no include guard, as in vec.h. Positions are the rows
// of [length, width] matrices, so that vectors run along the channels.
#include "cpu/simd/math.h"

namespace reformer::REFORMER_ISA {

using Floats = Vec<float>;
constexpr int kFloats = kLanes<float>;

// to = from * outputs [first, first + count) of the layer + bias, or to += the product without the bias. Output `first`
// is column 0 of `to`.
inline void multiply(const PackedLinear& layer, const GemmKernels<float>& kernels, const float* from, int32_t rows,
                     int32_t first, int32_t count, float* to, int32_t to_step, bool accumulate = false) {
  for (int32_t col = 0; col < count; col += kernels.cols())
    for (int32_t row = 0; row < rows; row += kernels.rows) {
      GemmTile<float> tile{};
      tile.depth = layer.inputs;
      tile.a = from + row * layer.inputs;
      tile.a_row = layer.inputs;
      tile.a_step = 1;
      tile.b = layer.matrix + first + col;
      tile.b_step = layer.step;
      tile.c = to + row * to_step + col;
      tile.c_row = to_step;
      tile.cols = std::min(kernels.cols(), count - col);
      tile.accumulate = accumulate;
      tile.col_bias = layer.bias + first + col;
      kernels.run(std::min(kernels.rows, rows - row), tile);
    }
}

// Layer normalisation without affine parameters.
inline void normalise(const float* from, int32_t rows, int32_t width, float* to) {
  const float scale = 1.0f / float(width);
  for (const float* end = from + rows * width; from < end; from += width, to += width) {
    Floats sum{}, squares{};
    for (int32_t c = 0; c < width; c += kFloats) sum += load<float>(from + c);
    const Floats mean = sum_of_lanes(sum) * scale;
    for (int32_t c = 0; c < width; c += kFloats) {
      const Floats distance = load<float>(from + c) - mean;
      squares = fma<float>(distance, distance, squares);
    }
    const float variance = sum_of_lanes(squares)[0] * scale;
    const Floats factor = broadcast(1.0f / std::sqrt(variance + 1e-5f));
    for (int32_t c = 0; c < width; c += kFloats) store<float>(to + c, (load<float>(from + c) - mean) * factor);
  }
}

// The token mixing of a block (between qkv and up), for the first `rows` positions: q times the average of v along the
// sequence with weights softmax(k), plus the depthwise convolution of v with the taps.
inline void mix(const PackedBlock& block, const float* qkv, int32_t length, int32_t rows, int32_t width, float* mixed) {
  const int32_t step = 3 * width;
  for (int32_t c = 0; c < width; c += kFloats) {
    const float *q = qkv + c, *k = q + width, *v = k + width;
    Floats most = load<float>(k), weights{}, sum{};
    for (int32_t i = 1; i < length; ++i) most = larger(most, load<float>(k + i * step));
    for (int32_t i = 0; i < length; ++i) {
      const Floats weight = exp(load<float>(k + i * step) - most);
      weights += weight;
      sum = fma<float>(weight, load<float>(v + i * step), sum);
    }
    const Floats average = sum / weights;
    const Floats tap_before = load<float>(block.taps + c), tap_itself = load<float>(block.taps + width + c),
                 tap_after = load<float>(block.taps + 2 * width + c);
    Floats before{}, itself = load<float>(v);
    for (int32_t i = 0; i < rows; ++i) {
      const Floats after = i + 1 < length ? load<float>(v + (i + 1) * step) : Floats{};
      Floats result = load<float>(q + i * step) * average;
      result = fma<float>(tap_itself, itself, result);
      result = fma<float>(tap_before, before, result);
      store<float>(mixed + i * width + c, fma<float>(tap_after, after, result));
      before = itself;
      itself = after;
    }
  }
}

inline void rectify(float* x, int32_t count) {
  for (int32_t i = 0; i < count; i += kFloats) store<float>(x + i, larger(Floats{}, load<float>(x + i)));
}

inline void add_to_rows(const float* bias, int32_t rows, int32_t width, float* x) {
  for (int32_t row = 0; row < rows; ++row)
    for (int32_t c = 0; c < width; c += kFloats)
      store<float>(x + row * width + c, load<float>(x + row * width + c) + load<float>(bias + c));
}

// Applies the blocks to x [length, width] in place. The last block computes only the first `last_rows` positions: 1 or
// all. scratch has gamma_scratch() floats.
inline void gamma_blocks(const PackedBlocks& blocks, const GemmKernels<float>& kernels, int32_t length,
                         int32_t last_rows, float* x, float* scratch) {
  const int32_t width = blocks.width, hidden_width = blocks.hidden;
  // Contiguous, to use as little of the first-level cache as possible.
  float *const normal = scratch, *const mixed = normal, *const qkv = normal + length * width,
               *const hidden = qkv + length * 3 * width;
  for (int32_t i = 0; i < blocks.count; ++i) {
    const PackedBlock& block = blocks.block[i];
    const int32_t rows = i + 1 < blocks.count ? length : last_rows;
    normalise(x, length, width, normal);
    if (rows == length) {
      multiply(block.qkv, kernels, normal, length, 0, 3 * width, qkv, 3 * width);
    } else {
      multiply(block.qkv, kernels, normal, rows, 0, width, qkv, 3 * width);
      multiply(block.qkv, kernels, normal, length, width, 2 * width, qkv + width, 3 * width);
    }
    mix(block, qkv, length, rows, width, mixed);
    for (int32_t row = 0; row < rows; row += kMlpPositions) {
      const int32_t part = std::min(kMlpPositions, rows - row);
      float* const to = x + row * width;
      multiply(block.up, kernels, mixed + row * width, part, 0, hidden_width, hidden, hidden_width);
      rectify(hidden, part * hidden_width);
      add_to_rows(block.down.bias, part, width, to);
      multiply(block.down, kernels, hidden, part, 0, width, to, width, true);
    }
  }
}

}  // namespace reformer::REFORMER_ISA
