// Launch configurations of the TMA GEMM kernels: pure functions, independent of a GPU, for solvers, tests and timings.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "hip/gemm/implicit_gemm_launch.h"
#include "tma_gemm.h"
#include "tma_windows_launch.h"

namespace reformer {

// The kind of problem of a kernel. windows: filters of any size in NHWC (tma_windows.hip); else 1x1 (tma_gemm.hip).
struct TmaGemmWhat {
  Direction direction;
  Layout layout;
  bool windows;
};
// Kinds by their names in tma_gemm.inc and tma_windows.inc.
namespace tma_gemm_what {
constexpr TmaGemmWhat forward{Direction::forward, Layout::nhwc, false};
constexpr TmaGemmWhat forward_nchw{Direction::forward, Layout::nchw, false};
constexpr TmaGemmWhat input_grad{Direction::input_grad, Layout::nhwc, false};
constexpr TmaGemmWhat input_grad_nchw{Direction::input_grad, Layout::nchw, false};
constexpr TmaGemmWhat weight_grad{Direction::weight_grad, Layout::nhwc, false};
constexpr TmaGemmWhat weight_grad_nchw{Direction::weight_grad, Layout::nchw, false};
}  // namespace tma_gemm_what
namespace tma_windows_what {
constexpr TmaGemmWhat forward{Direction::forward, Layout::nhwc, true};
constexpr TmaGemmWhat input_grad{Direction::input_grad, Layout::nhwc, true};
constexpr TmaGemmWhat weight_grad{Direction::weight_grad, Layout::nhwc, true};
}  // namespace tma_windows_what

// True if the problem's pixels are read by windows.
inline bool has_tma_windows(const ConvProblem& p) { return !p.is_1x1() || p.stride_h != 1 || p.stride_w != 1; }

// The layout for the kernels: images of one pixel are equal in NCHW and NHWC.
inline Layout tma_gemm_layout(const ConvProblem& p) { return p.h * p.w == 1 ? Layout::nhwc : p.layout; }

// A kernel of tma_gemm.inc or tma_windows.inc.
struct TmaGemmKernel {
  TmaGemmWhat what;
  DType dtype;
  TmaTile tile;
  gpu::Entry entry;
  TmaEpilogue epilogue = {};

  bool computes(const ConvProblem& p) const {
    return what.direction == p.direction && what.layout == tma_gemm_layout(p) && what.windows == has_tma_windows(p) &&
           dtype == p.dtype;
  }
  size_t args_bytes() const {
    if (!what.windows) return sizeof(TmaGemmArgs);
    return what.direction == Direction::input_grad ? sizeof(TmaClassesArgs) : sizeof(TmaWindowsArgs);
  }
  int threads() const { return tile.threads(epilogue); }
  int shared_bytes() const { return tile.shared_bytes(epilogue); }
  // The kernel with a program's epilogue, and fewer stages if the epilogue needs their memory.
  TmaGemmKernel with(const TmaEpilogue& of) const { return {what, dtype, tile.with(of), entry, of}; }
};

inline const std::vector<TmaGemmKernel>& tma_gemm_kernels() {
#define KERNEL_OF(file, what, T, rows, columns, stages, consumers)                               \
  {file##_what::what,                                                                            \
   DType::T,                                                                                     \
   {rows, columns, stages, TmaConsumers::consumers},                                             \
   {"tma_gemm/" #file, #file "_" #what "_" #T "_" #rows "x" #columns "_" #stages "_" #consumers, \
    #what ", " #T ", " #rows ", " #columns ", " #stages ", " #consumers}},
  static const std::vector<TmaGemmKernel> all = {
#define X(...) KERNEL_OF(tma_gemm, __VA_ARGS__)
#include "tma_gemm.inc"
#undef X
#define X(...) KERNEL_OF(tma_windows, __VA_ARGS__)
#include "tma_windows.inc"
  };
#undef X
#undef KERNEL_OF
  return all;
}

// The tile schedule: the operand that two blocks share, the number of blocks over which the tiles of rows are
// distributed, and the number of splits of the depth (split-K).
struct TmaGemmSchedule {
  TmaShared shared = TmaShared::kNothing;
  int row_blocks = 1, splits = 1;
};

struct TmaGemmConfig {
  TmaClassesArgs args{};  // most kernels read only one of its bases
  gpu::Launch launch;
  TmaWindowsConfig windows;
  int images = 1;               // number of images with matrices of their own
  int64_t workspace_bytes = 0;  // for partial sums, if there are several splits
  ImplicitGemmFinishArgs finish_args{};
  gpu::Launch finish_launch;
};

// The products of a direction: one in NHWC, or one for each class of pixels; in NCHW one for each image, which
// weight_grad adds up.
struct TmaGemmSizes {
  int images = 1, classes = 1;
  int rows, columns, depth;  // per product, of the largest class; columns and depth: per tap
  int columns_taps = 1, depth_taps = 1;
  int class_rows[kTmaMostClasses]{};  // if there are several classes
  bool weight_grad = false;

  // Tiles of rows of a product, counted in clusters of cluster_rows (1 or 2) tiles; the tiles of a cluster belong to
  // one class.
  int row_tiles_of(int product_rows, int tile_rows, int cluster_rows) const {
    const int tiles = gemm_launch::ceil_div(product_rows, tile_rows) * (weight_grad ? 1 : images);
    return gemm_launch::ceil_div(tiles, cluster_rows);
  }
  // The total over all products.
  int row_tiles(int tile_rows, int cluster_rows = 1) const {
    if (classes == 1) return row_tiles_of(rows, tile_rows, cluster_rows);
    int tiles = 0;
    for (int i = 0; i < classes; ++i) tiles += row_tiles_of(class_rows[i], tile_rows, cluster_rows);
    return tiles;
  }
  int column_tiles(int tile_columns) const {
    return gemm_launch::ceil_div(gemm_launch::ceil_div(columns, 64) * 64 * columns_taps, tile_columns);
  }
  int64_t result_numel() const { return int64_t{rows} * columns * columns_taps; }
  // The steps of a product, or of all classes.
  int steps() const { return gemm_launch::ceil_div(depth, kTmaDepth) * depth_taps * (weight_grad ? images : 1); }
};
// Sizes of a problem that these kernels support.
inline TmaGemmSizes tma_gemm_sizes(const ConvProblem& p) {
  TmaGemmSizes size;
  size.images = tma_gemm_layout(p) == Layout::nchw ? p.n : 1;
  const int taps = p.r * p.s, images = p.n / size.images, pixels = images * p.out_h() * p.out_w();
  switch (p.direction) {
    case Direction::forward:
      size.rows = pixels, size.columns = p.k, size.depth = p.c;
      size.depth_taps = taps;
      break;
    case Direction::input_grad:
      size.rows = images * gemm_launch::ceil_div(p.h, p.stride_h) * gemm_launch::ceil_div(p.w, p.stride_w);
      size.columns = p.c, size.depth = p.k;
      size.depth_taps = taps;
      size.classes = 0;
      for (int h = 0; h < std::min(p.stride_h, p.h); ++h)
        for (int w = 0; w < std::min(p.stride_w, p.w); ++w)
          size.class_rows[size.classes++] =
              images * gemm_launch::ceil_div(p.h - h, p.stride_h) * gemm_launch::ceil_div(p.w - w, p.stride_w);
      break;
    case Direction::weight_grad:
      size.rows = p.k, size.columns = p.c, size.depth = pixels;
      size.columns_taps = taps;
      size.weight_grad = true;
  }
  return size;
}

// Why no kernel of this family computes the problem, or null.
inline const char* unsupported_by_tma_gemm(const ConvProblem& p) {
  if (!is_16_bit(p.dtype)) return "it computes fp16 and bf16 only";
  if (p.groups != 1) return "it computes one group only";
  if (has_tma_windows(p) && p.layout != Layout::nhwc)
    return "in NCHW it is for filters of 1x1 without padding and strides";
  if (p.c % 8 || p.k % 8) return "the channels of input and output are no multiples of 16 bytes";
  if (tma_gemm_layout(p) == Layout::nchw && p.h * p.w % 8) return "the pixels of an image are no multiple of 16 bytes";
  constexpr int64_t most = (int64_t{1} << 31) - (1 << 16);
  if (p.input_numel() >= most || p.output_numel() >= most) return "it counts elements by 32 bits";
  return has_tma_windows(p) ? unsupported_by_tma_windows(p) : nullptr;
}

inline void configure_tma_gemm(const ConvProblem& p, const TmaGemmKernel& kernel, const TmaGemmSchedule& schedule,
                               TmaGemmConfig& config) {
  using gemm_launch::ceil_div;
  const TmaGemmSizes size = tma_gemm_sizes(p);
  const int cluster = schedule.shared == TmaShared::kNothing ? 1 : 2;
  config = {};
  TmaClassesArgs& a = config.args;
  a.rows = size.rows, a.columns = size.columns * size.columns_taps, a.depth = size.depth;
  if (kernel.what.windows) configure_tma_windows(p, a, config.windows);
  a.steps = kernel.what.windows && !size.weight_grad ? a.classes[0].steps : size.steps();
  a.steps_each = std::max(1, ceil_div(a.steps, schedule.splits));
  const int cluster_rows = schedule.shared == TmaShared::kColumns ? 2 : 1;
  a.row_tiles = size.row_tiles(kernel.tile.rows, cluster_rows);
  for (int i = 0; i < config.windows.count; ++i)
    a.classes[i].tiles = size.row_tiles_of(config.windows.classes[i].source.count(), kernel.tile.rows, cluster_rows);
  a.by_image = make_divider(size.weight_grad ? ceil_div(size.depth, kTmaDepth) : ceil_div(size.rows, kernel.tile.rows));
  config.images = size.images;
  a.row_blocks = schedule.row_blocks;
  const int column_tiles =
      ceil_div(size.column_tiles(kernel.tile.columns), schedule.shared == TmaShared::kRows ? 2 : 1);
  a.column_tiles = make_divider(column_tiles);
  a.shared = schedule.shared;
  a.b_resident = a.steps_each <= kernel.tile.stages && schedule.row_blocks < a.row_tiles && size.classes == 1;
  const int splits = std::max(1, ceil_div(a.steps, a.steps_each));
  config.launch.blocks_x = uint32_t(schedule.row_blocks * column_tiles);
  config.launch.blocks_y = uint32_t(splits);
  config.launch.blocks_z = config.launch.cluster_z = uint32_t(cluster);
  config.launch.threads = uint32_t(kernel.threads());
  config.launch.shared_bytes = uint32_t(kernel.shared_bytes());
  config.launch.pdl = true;
  if (splits > 1) {
    const int64_t numel = size.result_numel();
    config.workspace_bytes = numel * 4 * splits;
    configure_implicit_gemm_finish(numel, splits, p.k, 32, config.finish_args, config.finish_launch);
    config.finish_launch.pdl = true;
  }
}

// Number of partial results of each channel that a program leaves: one for each warpgroup that has some of its rows.
inline int tma_gemm_parts(const TmaGemmKernel& kernel, const TmaGemmArgs& a) {
  return a.row_blocks * (a.shared == TmaShared::kColumns ? 2 : 1) * kernel.tile.groups();
}

// Sets the pointers, as bind() of implicit_gemm_launch.h does.
inline void bind(TmaGemmConfig& config, const TmaGemmKernel& kernel, const void* x, const void* y, const void* filter,
                 const void* bias, void* result, void* workspace) {
  TmaClassesArgs& a = config.args;
  const Direction direction = kernel.what.direction;
  const bool weight_grad = direction == Direction::weight_grad, nchw = kernel.what.layout == Layout::nchw;
  const int depth = a.depth, pixels = weight_grad ? depth : a.rows;
  const auto lines_of = [](int box_lines, bool both) { return both ? box_lines / 2 : box_lines; };
  const auto matrix = [&](const void* at, int lines, int elements, int box_lines, bool both) {
    return gpu::tensor_map(at, {elements, lines}, {64, lines_of(box_lines, both)});
  };
  const auto planes = [&](const void* at, int channels, int box_lines, bool both) {
    return gpu::tensor_map(at, {pixels, channels, config.images, 1}, {64, lines_of(box_lines, both), 1, 1});
  };
  const bool both_a = a.shared == TmaShared::kRows, both_b = a.shared == TmaShared::kColumns;
  const void* const source = direction == Direction::forward ? x : y;
  if (kernel.what.windows) {
    bind_tma_windows(config.windows, direction, kernel.tile.rows, kernel.tile.columns, x, y, filter, result, a);
  } else if (weight_grad) {
    a.a = nchw ? planes(y, a.rows, kernel.tile.rows, both_a) : matrix(y, depth, a.rows, kTmaDepth, both_a);
    a.b = nchw ? planes(x, a.columns, kernel.tile.columns, both_b) : matrix(x, depth, a.columns, kTmaDepth, both_b);
    a.result = matrix(result, a.rows, a.columns, 64, false);
  } else {
    a.a = nchw ? planes(source, depth, kTmaDepth, both_a) : matrix(source, a.rows, depth, kernel.tile.rows, both_a);
    a.b = direction == Direction::forward ? matrix(filter, a.columns, depth, kernel.tile.columns, both_b)
                                          : matrix(filter, depth, a.columns, kTmaDepth, both_b);
    a.result = nchw ? planes(result, a.columns, 64, false) : matrix(result, a.rows, a.columns, 64, false);
  }
  a.bias = config.finish_args.bias = bias;
  a.partial = config.workspace_bytes ? static_cast<float*>(workspace) : nullptr;
  config.finish_args.partial = a.partial;
  config.finish_args.result = result;
}

// Expected microseconds. The constants were fitted to 37,000 timings of 328 1x1 problems in three directions on an
// H200. The schedule with the least estimate takes 1.02 times as long as the best one (geometric mean). Windows have
// not been timed yet.
inline double tma_gemm_us(const ConvProblem& p, const TmaGemmKernel& kernel, const TmaGemmConfig& config,
                          int multiprocessors) {
  struct Model {
    double bytes, launch, block, latency, store, finish, finish_bytes, floor, cluster;  // in us; bytes per us
  };
  constexpr Model kCorrelation{103e3, 0.59, 1.07, 1.0, 0.41, 0, 2.0e6, 1.3, 0.21};
  constexpr Model kWeightGrad{87e3, 0.71, 0.17, 0.93, 0.61, 1.84, 5.1e6, 1.56, 0.15};
  constexpr double kMemory = 4.3e6, kFlops = 790e6, kTensor = 0.17 / (128 * 128);
  const Model& m = p.direction == Direction::weight_grad ? kWeightGrad : kCorrelation;
  const TmaClassesArgs& a = config.args;
  const TmaGemmSizes size = tma_gemm_sizes(p);
  const int occupancy = std::max(1, std::min(2048 / kernel.threads(), (227 << 10) / (kernel.shared_bytes() + 1024)));
  const double blocks = double(config.launch.blocks_x) * config.launch.blocks_y * config.launch.blocks_z;
  double waves = blocks / (multiprocessors * occupancy);
  if (waves < 4) waves = std::max(1.0, std::ceil(waves));
  const double on_one = std::max(1.0, std::min(double(occupancy), std::ceil(blocks / multiprocessors)));
  const int tiles = gemm_launch::ceil_div(a.row_tiles, a.row_blocks), tile = kernel.tile.rows * kernel.tile.columns;
  const double step =
      std::max(std::max((kernel.tile.rows + kernel.tile.columns) * kTmaDepth * 2 / m.bytes, tile * kTensor) * on_one,
               m.latency / std::min(kernel.tile.stages, std::max(1, a.steps_each * tiles)));
  const double steps = a.scattered ? double(size.steps()) / size.classes : a.steps_each;  // per tile
  double us = m.launch + waves * (m.block + tiles * (steps * step + m.store * tile / 8192 * on_one));
  if (a.shared != TmaShared::kNothing) us += m.cluster;
  const double bytes = 2.0 * (double(p.input_numel()) + double(p.output_numel()) + double(p.weight_numel()));
  double floor = m.floor * std::max(bytes / kMemory, p.flops() / kFlops);
  // If memory is the bound, tiles that extend beyond the columns also take longer.
  if (!size.weight_grad)
    floor *= std::sqrt(double(size.column_tiles(kernel.tile.columns)) * kernel.tile.columns /
                       (size.columns * size.columns_taps));
  us = std::max(us, floor);
  if (config.workspace_bytes) us += m.finish + double(config.workspace_bytes) * 2 / m.finish_bytes;
  return us;
}

// The schedules worth trying for a kernel: shared operands if there are two tiles to share them; one tile of rows per
// block, or so many that the blocks fill the GPU once; no split-K, or as many splits as fill the GPU once or, in
// weight_grad, twice. Consumers that take turns need several tiles a block, and two blocks that share the columns: a
// block would read 53 bytes a cycle for its tiles of 128 x 192 from the second-level cache, which gives some 46.
inline std::vector<TmaGemmSchedule> tma_gemm_schedules(const ConvProblem& p, const TmaGemmKernel& kernel,
                                                       int multiprocessors) {
  using gemm_launch::ceil_div;
  const TmaGemmSizes size = tma_gemm_sizes(p);
  const int rows = size.row_tiles(kernel.tile.rows), columns = size.column_tiles(kernel.tile.columns);
  const int steps = size.steps();
  const int occupancy = std::max(1, std::min(2048 / kernel.threads(), (227 << 10) / (kernel.shared_bytes() + 1024)));
  const bool turns = kernel.tile.takes_turns();
  std::vector<TmaGemmSchedule> all;
  for (const TmaShared shared : {TmaShared::kNothing, TmaShared::kRows, TmaShared::kColumns}) {
    if ((shared == TmaShared::kRows && columns < 2) || (shared == TmaShared::kColumns && rows / size.classes < 2))
      continue;
    if (turns && shared != (rows < 2 ? TmaShared::kNothing : TmaShared::kColumns)) continue;
    const int row_tiles = size.row_tiles(kernel.tile.rows, shared == TmaShared::kColumns ? 2 : 1);
    const int column_tiles = shared == TmaShared::kRows ? ceil_div(columns, 2) : columns;
    const int slots = multiprocessors * occupancy / (shared == TmaShared::kNothing ? 1 : 2);
    const bool fills = int64_t{row_tiles} * column_tiles > slots;
    if (!turns || !fills) all.push_back({shared, row_tiles, 1});
    if (fills && (turns || p.direction != Direction::weight_grad))
      all.push_back({shared, ceil_div(row_tiles, ceil_div(row_tiles, std::max(1, slots / column_tiles))), 1});
    // Partial sums would be transposed or scattered.
    if (turns || (tma_gemm_layout(p) == Layout::nchw && !size.weight_grad) || size.classes > 1) continue;
    int last = 1;
    for (int waves = 1; steps >= 8 && waves <= (p.direction == Direction::weight_grad ? 2 : 1); ++waves) {
      const int64_t fill = int64_t{slots} * waves / (int64_t{row_tiles} * column_tiles);
      const int splits = int(std::min<int64_t>(fill, steps / 2));
      if (splits <= last || splits * size.result_numel() >= int64_t{1} << 27) continue;
      all.push_back({shared, row_tiles, last = splits});
    }
  }
  return all;
}

}  // namespace reformer
