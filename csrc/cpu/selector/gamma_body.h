// The body of gamma.cpp, compiled once for each instruction set. Positions are rows of kTokens x width matrices, so
// that vectors run along the channels.
#include "../simd/math.h"

namespace reformer::REFORMER_ISA {

using Floats = Vec<float>;
constexpr int kFloats = kLanes<float>;

// to = from * outputs [first, first + count) of the layer (columns of `to` begin with `first` as column 0), or is added
// to `to`, then without the bias.
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

// The sum over terms of row times weight, for every token; the device belongs to the first.
inline void embed(const PackedSelector& net, const Features& features, float* x) {
  for (int32_t c = 0; c < net.width; c += kFloats)
    for (int32_t token = 0; token < kTokens; ++token) {
      Floats sum = token == 0 ? load<float>(net.device + c) : Floats{};
      for (const Features::Term& term : features.tokens[size_t(token)])
        sum = fma<float>(broadcast(term.weight), load<float>(net.embedding + int64_t{term.row} * net.width + c), sum);
      store<float>(x + token * net.width + c, sum);
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

// The part of a block between qkv and up, for the first `rows` positions: q times the average of v with weights
// softmax(k) along the sequence, plus the taps times v of the neighbours.
inline void mix(const PackedBlock& block, const float* qkv, int32_t rows, int32_t width, float* mixed) {
  const int32_t step = 3 * width;
  for (int32_t c = 0; c < width; c += kFloats) {
    const float *q = qkv + c, *k = q + width, *v = k + width;
    Floats most = load<float>(k), weights{}, sum{};
    for (int32_t i = 1; i < kTokens; ++i) most = larger(most, load<float>(k + i * step));
    for (int32_t i = 0; i < kTokens; ++i) {
      const Floats weight = exp(load<float>(k + i * step) - most);
      weights += weight;
      sum = fma<float>(weight, load<float>(v + i * step), sum);
    }
    const Floats average = sum / weights;
    const Floats tap_before = load<float>(block.taps + c), tap_itself = load<float>(block.taps + width + c),
                 tap_after = load<float>(block.taps + 2 * width + c);
    Floats before{}, itself = load<float>(v);
    for (int32_t i = 0; i < rows; ++i) {
      const Floats after = i + 1 < kTokens ? load<float>(v + (i + 1) * step) : Floats{};
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

inline void infer(const PackedSelector& net, const Features& features, const GemmKernels<float>& kernels,
                  float* logits) {
  // One after another without gaps, so that together they take as little of the first cache as can be.
  alignas(64) float scratch[kTokens * (5 * kMaxWidth + kMaxHidden)];
  const int32_t width = net.width;
  float *const x = scratch, *const normal = x + kTokens * width, *const mixed = normal,
               *const qkv = normal + kTokens * width, *const hidden = qkv + kTokens * 3 * width;
  embed(net, features, x);
  for (int32_t i = 0; i < net.blocks; ++i) {
    const PackedBlock& block = net.block[i];
    const int32_t rows = i + 1 < net.blocks ? kTokens : 1;  // only the first position of the last block is read
    normalise(x, kTokens, width, normal);
    if (rows == kTokens) {
      multiply(block.qkv, kernels, normal, kTokens, 0, 3 * width, qkv, 3 * width);
    } else {
      multiply(block.qkv, kernels, normal, 1, 0, width, qkv, 3 * width);
      multiply(block.qkv, kernels, normal, kTokens, width, 2 * width, qkv + width, 3 * width);
    }
    mix(block, qkv, rows, width, mixed);
    multiply(block.up, kernels, mixed, rows, 0, net.hidden, hidden, net.hidden);
    rectify(hidden, rows * net.hidden);
    add_to_rows(block.down.bias, rows, width, x);
    multiply(block.down, kernels, hidden, rows, 0, width, x, width, true);
  }
  normalise(x, 1, width, normal);
  multiply(net.head, kernels, normal, 1, 0, net.head.outputs, logits, 0);
}

}  // namespace reformer::REFORMER_ISA
