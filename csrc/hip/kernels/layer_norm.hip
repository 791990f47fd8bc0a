// Layer norm of rows whose elements are adjacent in memory: forward and backward, one pass over memory each.
//
// kLanes neighbouring threads of a warp have a row, and each of them kVectors groups of kCount of its elements, which
// stay in registers: the variance is that of differences from the mean, and nothing is read twice. A block goes on to
// further rows, so that a thread's columns of the parameters and of their gradients' sums stay there too. The next
// row's loads are in flight while a row is computed.
//
// The text of an instance follows the file: solvers/layer_norm.cpp applies the macro at its end.
#include "../device/add_up.h"
#include "../device/grid_dependency.h"
#include "layer_norm.h"
#include "program.h"

namespace reformer {
namespace {

// kCount adjacent elements as they come from memory, by accesses of at most 16 bytes.
template <class T, int kCount>
struct Group {
  static constexpr int kMost = 16 / int(sizeof(T)), kStep = kCount < kMost ? kCount : kMost;
  Pack<T, kStep> packs[kCount / kStep];

  DEVICE void read(const T* from) {
    UNROLL
    for (int i = 0; i < kCount / kStep; ++i) packs[i] = load<T, kStep>(from + i * kStep);
  }
  DEVICE void give(float (&to)[kCount]) const {
    UNROLL
    for (int i = 0; i < kCount / kStep; ++i) {
      float some[kStep];
      widen<T, kStep>(packs[i], some);
      UNROLL
      for (int j = 0; j < kStep; ++j) to[i * kStep + j] = some[j];
    }
  }
};

// A thread's fragment of a row of kWidth elements, and which rows it computes.
template <int kWidth, int kCount, int kVectors, int kLanes>
struct RowFragment {
  static constexpr int kRows = kLayerNormThreads / kLanes;  // rows that a block computes at once
  static constexpr int kApart = kLanes * kCount;            // from one of a thread's groups to the next
  using Values = float[kVectors][kCount];
  const LayerNormArgs& p;
  const int begin = thread_id() % kLanes * kCount;

  DEVICE explicit RowFragment(const LayerNormArgs& args) : p(args) {}
  // Whether the row has a group v of this thread: all but the last are full.
  DEVICE bool wanted(int v) const { return (v + 1) * kApart <= kWidth || v * kApart + begin < kWidth; }
  // Where it begins; a group past the row's end is read from the row's beginning instead.
  DEVICE int column(int v) const { return wanted(v) ? v * kApart + begin : 0; }
  DEVICE int first() const { return block_x() * kRows; }
  DEVICE int step() const { return p.parts * kRows; }
  // This thread's row, where the block's rows begin at `first`.
  DEVICE int row(int first) const { return first + thread_id() / kLanes; }

  // Past the end the last row is read again: a condition would have each load wait for the one before.
  template <class T>
  DEVICE void read(const void* from, int row, Group<T, kCount> (&to)[kVectors]) const {
    const T* const line =
        static_cast<const T*>(from) + static_cast<long long>(row < p.rows ? row : p.rows - 1) * kWidth;
    UNROLL
    for (int v = 0; v < kVectors; ++v) to[v].read(line + column(v));
  }
  template <class T>
  DEVICE void parameters(const void* from, float otherwise, Values& to) const {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      UNROLL
      for (int j = 0; j < kCount; ++j) to[v][j] = otherwise;
      if (from) {
        Group<T, kCount> group;
        group.read(static_cast<const T*>(from) + column(v));
        group.give(to[v]);
      }
    }
  }
  // of(v, j): one element's value.
  template <class T, class Of>
  DEVICE void write(void* to, int row, Of of) const {
    const long long line = static_cast<long long>(row) * kWidth;
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float some[kCount];
      UNROLL
      for (int j = 0; j < kCount; ++j) some[j] = of(v, j);
      if (wanted(v)) reformer::write<T, kCount>(to, line + column(v), some);
    }
  }
  // The sum over the row, in all its threads. of(v, j): one element's value.
  template <class Of>
  DEVICE float sum(Of of) const {
    float sum = 0;
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float group = 0;
      UNROLL
      for (int j = 0; j < kCount; ++j) group += of(v, j);
      sum += wanted(v) ? group : 0.0f;
    }
    UNROLL
    for (int mask = kLanes / 2; mask; mask /= 2) sum += shuffle_xor(sum, mask);
    return sum;
  }
};

template <class X, class Y, class W, int kWidth, int kCount, int kVectors, int kLanes>
DEVICE void layer_norm_forward(const LayerNormArgs& p) {
  using Mine = RowFragment<kWidth, kCount, kVectors, kLanes>;
  const Mine mine(p);
  grid_dependency_wait();
  typename Mine::Values weight, bias, x;
  mine.template parameters<W>(p.weight, 1, weight);
  mine.template parameters<W>(p.bias, 0, bias);
  Group<X, kCount> next[kVectors];
  mine.read(p.input, mine.row(mine.first()), next);
  for (int first = mine.first(); first < p.rows; first += mine.step()) {
    UNROLL
    for (int v = 0; v < kVectors; ++v) next[v].give(x[v]);
    mine.read(p.input, mine.row(first + mine.step()), next);
    // The first mean is as exact as fp32 is for the values, the second as for their differences.
    const float about = mine.sum([&](int v, int j) { return x[v][j]; }) / float(kWidth);
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      UNROLL
      for (int j = 0; j < kCount; ++j) x[v][j] -= about;
    }
    const float rest = mine.sum([&](int v, int j) { return x[v][j]; }) / float(kWidth);
    const float squares = mine.sum([&](int v, int j) { return (x[v][j] - rest) * (x[v][j] - rest); });
    const float by = rsqrt_of(squares / float(kWidth) + p.eps);
    const int row = mine.row(first);
    if (row >= p.rows) continue;
    mine.template write<Y>(p.result, row,
                           [&](int v, int j) { return (x[v][j] - rest) * by * weight[v][j] + bias[v][j]; });
    if (thread_id() % kLanes == 0) p.statistics[row] = about + rest, p.statistics[p.rows + row] = by;
  }
}

// Adds up each column over the rows of a block, and stores it as this block's part of sum 0 or 1.
template <int kWidth, int kCount, int kVectors, int kLanes>
DEVICE void store_part(const LayerNormArgs& p, float (&sums)[kVectors][kCount], int which) {
  constexpr int kColumns = kLanes * kCount, kWarps = kLayerNormThreads / kWarp;
  SHARED float shared[kWarps * kColumns];
  const long long part = static_cast<long long>(which) * p.parts + block_x();
  UNROLL
  for (int v = 0; v < kVectors; ++v) {
    UNROLL
    for (int j = 0; j < kCount; ++j) {
      UNROLL
      for (int mask = kLanes; mask < kWarp; mask *= 2) sums[v][j] += shuffle_xor(sums[v][j], mask);
    }
    barrier();  // the memory has been read
    if (lane_id() < kLanes) {
      UNROLL
      for (int j = 0; j < kCount; ++j) shared[warp_id() * kColumns + lane_id() * kCount + j] = sums[v][j];
    }
    barrier();
    for (int i = thread_id(); i < kColumns && v * kColumns + i < kWidth; i += kLayerNormThreads) {
      float sum = shared[i];
      UNROLL
      for (int warp = 1; warp < kWarps; ++warp) sum += shared[warp * kColumns + i];
      p.partial[part * kWidth + v * kColumns + i] = sum;
    }
  }
}

template <class X, class G, class W, int kWidth, int kCount, int kVectors, int kLanes, bool kOfInput,
          bool kOfParameters>
DEVICE void layer_norm_backward(const LayerNormArgs& p) {
  using Mine = RowFragment<kWidth, kCount, kVectors, kLanes>;
  const Mine mine(p);
  grid_dependency_wait();
  typename Mine::Values weight, x, grad, of_weight{}, of_bias{};
  mine.template parameters<W>(p.weight, 1, weight);
  Group<X, kCount> next_x[kVectors];
  Group<G, kCount> next_grad[kVectors];
  float next_mean, next_by;
  const auto read = [&](int row) {
    mine.read(p.input, row, next_x);
    mine.read(p.grad, row, next_grad);
    row = row < p.rows ? row : p.rows - 1;
    next_mean = p.statistics[row], next_by = p.statistics[p.rows + row];
  };
  read(mine.row(mine.first()));
  for (int first = mine.first(); first < p.rows; first += mine.step()) {
    const int row = mine.row(first);
    const float mean = next_mean, by = next_by;
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      next_x[v].give(x[v]);
      next_grad[v].give(grad[v]);
      UNROLL
      for (int j = 0; j < kCount; ++j) {
        x[v][j] = (x[v][j] - mean) * by;
        grad[v][j] = row < p.rows ? grad[v][j] : 0.0f;
      }
    }
    read(mine.row(first + mine.step()));
    if constexpr (kOfParameters) {
      UNROLL
      for (int v = 0; v < kVectors; ++v) {
        UNROLL
        for (int j = 0; j < kCount; ++j) of_weight[v][j] += grad[v][j] * x[v][j], of_bias[v][j] += grad[v][j];
      }
    }
    if constexpr (kOfInput) {
      UNROLL
      for (int v = 0; v < kVectors; ++v) {
        UNROLL
        for (int j = 0; j < kCount; ++j) grad[v][j] *= weight[v][j];
      }
      const float mean_grad = mine.sum([&](int v, int j) { return grad[v][j]; }) / float(kWidth);
      const float slope = mine.sum([&](int v, int j) { return grad[v][j] * x[v][j]; }) / float(kWidth);
      if (row < p.rows)
        mine.template write<X>(p.result, row,
                               [&](int v, int j) { return by * (grad[v][j] - mean_grad - x[v][j] * slope); });
    }
  }
  if constexpr (kOfParameters) {
    store_part<kWidth, kCount, kVectors, kLanes>(p, of_weight, 0);
    store_part<kWidth, kCount, kVectors, kLanes>(p, of_bias, 1);
  }
}

// Adds up the parts, always in the same order. Blocks along y: the two sums.
template <class W, int kCount>
DEVICE void layer_norm_finish(const LayerNormArgs& p) {
  constexpr int kAcross = kLayerNormFinishColumns / kCount, kShares = kLayerNormThreads / kAcross;
  SHARED float shared[kShares * kLayerNormFinishColumns];
  grid_dependency_wait();
  const int x = thread_id() % kAcross * kCount, y = thread_id() / kAcross;
  const int column = block_x() * kLayerNormFinishColumns + x, all = p.width * p.parts;
  float sums[kCount] = {};
  if (column < p.width)
    add_up<kCount>(p.partial + static_cast<long long>(block_y()) * all + column, p.width, y, kShares, p.parts, sums);
  UNROLL
  for (int j = 0; j < kCount; ++j) shared[y * kLayerNormFinishColumns + x + j] = sums[j];
  barrier();
  void* const to = block_y() ? p.of_bias : p.of_weight;
  const int mine = block_x() * kLayerNormFinishColumns + thread_id();
  if (thread_id() >= kLayerNormFinishColumns || mine >= p.width || !to) return;
  float sum = 0;
  for (int i = 0; i < kShares; ++i) sum += shared[i * kLayerNormFinishColumns + thread_id()];
  from_float(sum, static_cast<W*>(to)[mine]);
}

}  // namespace
}  // namespace reformer

// occupancy: blocks that the registers of an NVIDIA multiprocessor have to be enough for; 0: any.
#define REFORMER_LAYER_NORM(name, occupancy, what, ...)                                      \
  KERNEL_OCCUPANCY(reformer::kLayerNormThreads, occupancy) name(reformer::LayerNormArgs p) { \
    reformer::grid_dependency_launch();                                                      \
    using namespace reformer;                                                                \
    layer_norm_##what<__VA_ARGS__>(p);                                                       \
  }
