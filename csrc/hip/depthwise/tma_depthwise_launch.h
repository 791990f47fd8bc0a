// Launch configurations of the TMA depthwise kernels: pure functions, independent of a GPU, for solvers, tests and
// timings.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "conv/problem.h"
#include "jit/gpu.h"
#include "tma_depthwise.h"

namespace reformer {

// A kernel of tma_depthwise.inc.
struct TmaDepthwiseKernel {
  Direction direction;
  DType dtype;
  int filter, stride, occupancy;
  gpu::Entry entry;
};

inline const std::vector<TmaDepthwiseKernel>& tma_depthwise_kernels() {
#define X(what, T, R, ST)            \
  {Direction::what,                  \
   DType::T,                         \
   R,                                \
   ST,                               \
   kTmaDepthwiseOccupancy_##what<R>, \
   {"depthwise/tma_depthwise", "tma_depthwise_" #what "_" #T "_" #R "_" #ST, #what ", " #T ", " #R ", " #ST}},
  static const std::vector<TmaDepthwiseKernel> all = {
#include "tma_depthwise.inc"
  };
#undef X
  return all;
}

// input_grad of stride 1 is a forward pass on the output's gradient with the flipped filter.
inline bool is_flipped(const ConvProblem& p) { return p.direction == Direction::input_grad && p.stride_h == 1; }

// Null if there is none.
inline const TmaDepthwiseKernel* tma_depthwise_kernel(const ConvProblem& p) {
  for (const TmaDepthwiseKernel& kernel : tma_depthwise_kernels())
    if (kernel.direction == (is_flipped(p) ? Direction::forward : p.direction) && kernel.dtype == p.dtype &&
        kernel.filter == p.r && kernel.stride == p.stride_h)
      return &kernel;
  return nullptr;
}

// Why no kernel of this family computes the problem, or null.
inline const char* unsupported_by_tma_depthwise(const ConvProblem& p) {
  if (p.layout != Layout::nhwc) return "it reads NHWC only";
  if (!is_16_bit(p.dtype)) return "it computes fp16 and bf16 only";
  if (p.groups != p.c || p.k != p.c) return "it needs one filter a channel";
  if (p.r != p.s || p.stride_h != p.stride_w) return "the filter is not square, or its strides differ";
  if (p.dilation_h != 1 || p.dilation_w != 1) return "the filter is dilated";
  if (p.c % 8) return "the number of channels is no multiple of 8";
  if (!tma_depthwise_kernel(p)) return "it is not compiled for this size of filter and stride";
  return nullptr;
}

// A tile: the number of strips across and down, the rows per strip, and the number of images. The number of strips is
// even.
struct TmaDepthwiseTile {
  int across, down, rows, images;
};

struct TmaDepthwiseConfig {
  TmaDepthwiseArgs args{};
  gpu::Launch launch;
  int64_t workspace_bytes = 0;     // weight_grad: for the blocks' sums
  int result_w = 0, result_h = 0;  // size of the stored images; in weight_grad of y
  int work_w = 0, work_h = 0;      // the same in the pixels that strips count
};

namespace depthwise_launch {
inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline int up(int value, int multiple) { return ceil_div(value, multiple) * multiple; }
}  // namespace depthwise_launch

// Returns false if the tile exceeds the limits of the kernel or the GPU.
inline bool configure_tma_depthwise(const ConvProblem& p, const TmaDepthwiseTile& tile, int multiprocessors,
                                    TmaDepthwiseConfig& config) {
  using depthwise_launch::ceil_div;
  using depthwise_launch::up;
  constexpr int kLine = kTmaDepthwiseChannels * 2, kMostBox = 256, kMostShared = 227 << 10, kAligned = 1024;
  config = {};
  TmaDepthwiseArgs& a = config.args;
  const int filter = p.r, stride = p.stride_h;
  const bool input_grad = p.direction == Direction::input_grad, weight_grad = p.direction == Direction::weight_grad;
  const bool strided = input_grad && stride == 2;
  a.channels = p.c;
  a.flipped = is_flipped(p);
  a.tile_images = tile.images;
  a.rows = tile.rows;
  a.strips_across = make_divider(tile.across);
  a.strips_down = make_divider(tile.down);
  a.pairs = tile.across * tile.down * tile.images / 2;
  config.result_h = input_grad ? p.h : p.out_h();
  config.result_w = input_grad ? p.w : p.out_w();
  // before: pixels of the source before a strip's pixel; size: pixels of the result per strip pixel along an axis.
  const int before = (filter - 1) / 2, size = strided ? 2 : 1;
  if (strided) {
    a.odd_h = p.pad_h % 2, a.odd_w = p.pad_w % 2;
    a.source_top = (p.pad_h + 1) / 2 - before, a.source_left = (p.pad_w + 1) / 2 - before;
    a.source_h = tile.rows * tile.down + before, a.source_w = tile.across * 8 + before;
    a.source_halves = 1;
  } else {
    a.source_top = a.flipped ? p.pad_h - (filter - 1) : -p.pad_h;
    a.source_left = a.flipped ? p.pad_w - (filter - 1) : -p.pad_w;
    a.source_h = (tile.rows * tile.down - 1) * stride + filter, a.source_w = (tile.across * 8 - 1) * stride + filter;
    a.source_halves = 2 * stride;
  }
  config.work_h = ceil_div(config.result_h, size);
  config.work_w = ceil_div(config.result_w, size);
  a.tile_h = tile.rows * tile.down * size, a.tile_w = tile.across * 8 * size;
  const int down = ceil_div(config.work_h, tile.rows * tile.down), across = ceil_div(config.work_w, tile.across * 8);
  a.images = p.n, a.height = config.result_h, a.width = config.result_w;
  a.tiles_across = make_divider(across);
  a.tiles_down = make_divider(down);
  a.tiles = across * down * ceil_div(p.n, tile.images);
  if (std::max({a.source_w, a.source_h, a.tile_w, a.tile_h, a.tile_images}) > kMostBox) return false;
  if (tile.images > 1 && across * down > 1) return false;

  const int source_bytes = a.source_h * a.source_w * tile.images * kLine;
  const int tile_bytes = a.tile_h * a.tile_w * tile.images * kLine;
  a.tile_bytes = up(tile_bytes, kAligned);
  a.stage_bytes = up(source_bytes, kAligned) + (weight_grad ? a.tile_bytes : 0);
  a.copied_bytes = source_bytes + (weight_grad ? tile_bytes : 0);
  const int sums_bytes = weight_grad ? kTmaDepthwiseWarps * filter * filter * 8 * 4 : 0;

  // As many blocks as run at once, and no more shared memory than this occupancy allows.
  const int boxes = ceil_div(p.c, kTmaDepthwiseChannels);
  const auto bytes_of = [&](int stages, int results) {
    return std::max(stages * a.stage_bytes + (weight_grad ? 0 : results * a.tile_bytes), up(sums_bytes, 8)) +
           stages * 16;
  };
  int occupancy = tma_depthwise_kernel(p)->occupancy;
  if (bytes_of(1, 1) > kMostShared / occupancy - 1024) occupancy = 1;
  if (bytes_of(1, 1) > kMostShared - 1024) return false;
  a.blocks = std::min(a.tiles, std::max(1, multiprocessors * occupancy / boxes));
  const int each = ceil_div(a.tiles, a.blocks);
  a.blocks = ceil_div(a.tiles, each);
  a.stages = std::min(each, 4);
  const int results = std::min(each, 2);
  while (a.stages > 1 && bytes_of(a.stages, results) > kMostShared / occupancy - 1024) --a.stages;
  if (bytes_of(a.stages, results) > kMostShared - 1024) return false;
  a.barriers = bytes_of(a.stages, results) - a.stages * 16;
  config.launch.blocks_x = uint32_t(boxes);
  config.launch.blocks_y = uint32_t(a.blocks);
  config.launch.threads = kTmaDepthwiseThreads;
  config.launch.shared_bytes = uint32_t(bytes_of(a.stages, results));
  config.launch.pdl = true;
  if (weight_grad) config.workspace_bytes = int64_t{a.blocks} * filter * filter * p.c * 4;
  return true;
}

// Sets the pointers; in weight_grad the result is the blocks' sums. x, y: as in ConvBuffers.
inline void bind(TmaDepthwiseConfig& config, const ConvProblem& p, void* x, void* y, const void* filter,
                 const void* bias, void* workspace) {
  TmaDepthwiseArgs& a = config.args;
  constexpr int kChannels = kTmaDepthwiseChannels;
  const auto of_x = [&](int w, int h) {
    return gpu::tensor_map(x, {p.c, p.w, p.h, p.n}, {kChannels, w, h, a.tile_images});
  };
  const auto of_y = [&](int w, int h) {
    return gpu::tensor_map(y, {p.c, p.out_w(), p.out_h(), p.n}, {kChannels, w, h, a.tile_images});
  };
  const bool input_grad = p.direction == Direction::input_grad;
  a.source = input_grad ? of_y(a.source_w, a.source_h) : of_x(a.source_w, a.source_h);
  a.other = input_grad ? of_x(a.tile_w, a.tile_h) : of_y(a.tile_w, a.tile_h);
  a.filter = filter;
  a.bias = bias;
  a.partial = static_cast<float*>(workspace);
}

// Expected microseconds. The constants were fitted to 2,504 timings of 42 problems in three directions on an H200. The
// tile with the least estimate takes 1.04 times as long as the best one (input_grad with stride 2: 1.06).
inline double tma_depthwise_us(const ConvProblem& p, const TmaDepthwiseConfig& config, int multiprocessors) {
  struct Model {
    double launch, latency, bytes, row, product, load, strip, tile, floor, part;  // in us; bytes per us
  };
  constexpr Model kRing{1.46, 1.34, 106e3, 0, 0.0025, 0.041, 0.068, 0.22, 1.29, 0};
  constexpr Model kStridedInputGrad{1.67, 1.64, 190e3, 0.084, 0, 0, 0, 0, 1.28, 0};
  constexpr Model kWeightGrad{2.26, 1.91, 101e3, 0.078, 0, 0.032, 0.13, 0, 1.21, 5.9e-6};
  constexpr double kMemory = 4.3e6;
  using depthwise_launch::ceil_div;
  const TmaDepthwiseArgs& a = config.args;
  const bool weight_grad = p.direction == Direction::weight_grad;
  const bool strided_input_grad = p.direction == Direction::input_grad && p.stride_h == 2;
  const Model& m = weight_grad ? kWeightGrad : strided_input_grad ? kStridedInputGrad : kRing;
  const double product = weight_grad          ? 0.0043
                         : strided_input_grad ? 0.0089
                                              : 0.0059;  // us per product on the tensor cores of one multiprocessor
  const int filter = p.r, taps = (filter + 1) / 2;
  const int groups = std::min(8, p.c / 8), workers = kTmaDepthwiseWarps / groups;
  const int rows = p.stride_h == 1 ? a.rows + filter - 1 : a.rows;
  const int pairs = (taps + 1) / 2;
  const int products = strided_input_grad ? taps * pairs * 4 : filter * taps;
  const int loads = strided_input_grad ? taps * pairs : p.stride_h == 1 ? taps : filter * taps;
  const int each = ceil_div(a.tiles, a.blocks);
  const double on_one = std::ceil(double(a.blocks) * config.launch.blocks_x / multiprocessors);
  const double compute =
      ceil_div(a.pairs, workers) * (rows * (m.row + m.product * products + m.load * loads) + m.strip);
  const double pipes = a.pairs * groups / 4.0 * rows * products * on_one * product;
  const double load = (a.copied_bytes + a.tile_bytes) * on_one / m.bytes;
  const double tile = std::cbrt(compute * compute * compute + load * load * load + pipes * pipes * pipes) + m.tile;
  const double us = m.launch + m.latency + each * tile + (a.stages < 2 ? (each - 1) * m.latency : 0);
  const double bytes = 2.0 * p.n * p.c * (double(p.h) * p.w + double(p.out_h()) * p.out_w());
  const double least = m.launch + m.floor * bytes / kMemory;
  return std::sqrt(std::hypot(us * us, least * least)) + a.blocks * m.part * filter * filter * p.c;
}

// Tiles worth trying.
inline std::vector<TmaDepthwiseTile> tma_depthwise_tiles(const ConvProblem& p) {
  using depthwise_launch::ceil_div;
  TmaDepthwiseConfig config;
  configure_tma_depthwise(p, {2, 1, 1, 1}, 1, config);
  const int across = ceil_div(config.work_w, 8);
  std::vector<TmaDepthwiseTile> all;
  for (const int wide : {1, 2, 3, 4, 7, 8}) {
    if (wide > 1 && wide > across) continue;
    for (const int images : {1, 2, 4}) {
      if (images > p.n || (images > 1 && wide < across)) continue;
      for (const int down : {1, 2}) {
        if (wide * down * images % 2) continue;
        int last = 0;
        for (int parts = 1; parts <= 16; ++parts) {
          const int rows = ceil_div(ceil_div(config.work_h, down), parts);
          if (rows == last || (images > 1 && parts > 1)) continue;
          last = rows;
          all.push_back({wide, down, rows, images});
        }
      }
    }
  }
  return all;
}

}  // namespace reformer
