// Launch configurations of the implicit GEMM kernels: pure functions, independent of a GPU, for solvers, tests and
// timings.
//
//   for (const ImplicitGemmKernel& kernel : implicit_gemm_kernels()) {
//     ImplicitGemmConfig config;
//     if (const char* why_not = configure_implicit_gemm(problem, kernel, schedule, warp, config)) ...
//     bind(config, direction, x, y, filter, bias, result, workspace);
//     gpu::launch(gpu::Kernel(kernel.entry), config.launch, queue, config.args);
//     if (config.partials > 1)
//       gpu::launch(gpu::Kernel(implicit_gemm_finish(problem.dtype)->entry), config.finish_launch, queue,
//                   config.finish_args);
//   }
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "conv/problem.h"
#include "implicit_gemm.h"
#include "jit/gpu.h"

namespace reformer {

enum class ImplicitGemmPart : uint8_t { forward, input_grad, weight_grad, finish };

// A kernel of implicit_gemm.inc.
struct ImplicitGemmKernel {
  ImplicitGemmPart part;
  DType dtype;
  bool pointwise;
  int rows, columns, warps_down, warps_across, stages;
  gpu::Entry entry;

  // True if it uses wgmma, and is compiled for sm_90a only.
  bool for_groups() const { return warps_across == 1 && rows == 16 * warps_down; }
  bool computes(Direction direction) const { return int(part) == int(direction); }
};
static_assert(int(ImplicitGemmPart::weight_grad) == int(Direction::weight_grad));

inline const std::vector<ImplicitGemmKernel>& implicit_gemm_kernels() {
  constexpr bool pointwise = true, general = false;
#define X(what, T, kind, rows, columns, down, across, stages)                                         \
  {ImplicitGemmPart::what,                                                                            \
   DType::T,                                                                                          \
   kind,                                                                                              \
   rows,                                                                                              \
   columns,                                                                                           \
   down,                                                                                              \
   across,                                                                                            \
   stages,                                                                                            \
   {"gemm/implicit_gemm",                                                                             \
    "implicit_gemm_" #what "_" #T "_" #kind "_" #rows "x" #columns "_" #down "x" #across "_" #stages, \
    #what ", " #T ", " #kind ", " #rows ", " #columns ", " #down ", " #across ", " #stages}},
#define X_GROUPS(...) X(__VA_ARGS__)
#define X_WARPS(...) X(__VA_ARGS__)
  static const std::vector<ImplicitGemmKernel> all = {
#include "implicit_gemm.inc"
  };
#undef X_WARPS
#undef X_GROUPS
#undef X
  (void)general;
  return all;
}

// The kernel that adds up partial sums, or null.
inline const ImplicitGemmKernel* implicit_gemm_finish(DType dtype) {
  for (const ImplicitGemmKernel& kernel : implicit_gemm_kernels())
    if (kernel.part == ImplicitGemmPart::finish && kernel.dtype == dtype) return &kernel;
  return nullptr;
}

// The tile schedule. splits: parts of the depth (split-K), one per block. cluster: number of blocks (1, 2, 4 or 8;
// sm_90 and later) that add up their parts among themselves; the finish kernel adds up the remaining parts. tiles:
// greatest number of tiles of rows that a block computes, one after another; 1 unless splits is 1 and copies are
// asynchronous.
struct ImplicitGemmSchedule {
  int splits = 1, cluster = 1, tiles = 1;
};

struct ImplicitGemmConfig {
  ImplicitGemmArgs args{};
  gpu::Launch launch;
  int partials = 1;             // parts of the sums in the workspace, or 1 if the result is computed directly
  int steps = 0;                // along the depth, of all splits
  int tiles = 1;                // tiles of rows per block at most
  int64_t workspace_bytes = 0;  // for partial sums, if there are several splits
  ImplicitGemmFinishArgs finish_args{};
  gpu::Launch finish_launch;
};

namespace gemm_launch {

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

inline ImplicitGemmAxis make_axis(int count, int first, int origin, int taps, int first_tap) {
  return {count, first, origin, taps, first_tap, make_divider(count), make_divider(taps ? taps : 1)};
}

// The classes of an axis of dx, and their number. Those with the most taps come first, as they take longest.
inline int make_classes(int size, int filter, int pad, int stride, int dilation, ImplicitGemmAxis* to) {
  int count = 0;
  for (int first = 0; first < stride && first < size; ++first) {
    int taps = 0, first_tap = 0;
    for (int tap = filter - 1; tap >= 0; --tap)
      if ((first + pad - tap * dilation) % stride == 0) first_tap = tap, ++taps;
    const int origin = taps ? (first + pad - first_tap * dilation) / stride : 0;
    int at = count++;
    for (; at > 0 && to[at - 1].taps < taps; --at) to[at] = to[at - 1];
    to[at] = make_axis(ceil_div(size - first, stride), first, origin, taps, first_tap);
  }
  return count;
}

inline void configure_correlation(const ConvProblem& p, bool pointwise, int depth, ImplicitGemmConfig& config,
                                  int& classes, int& all_steps) {
  ImplicitGemmArgs& a = config.args;
  const bool forward = p.direction == Direction::forward;
  const int out_h = p.out_h(), out_w = p.out_w();
  int classes_h = 1, classes_w = 1;
  a.images = p.n;
  a.filter_pitch = p.r * p.s * p.group_c();
  a.filter_tap_w = p.group_c();
  a.filter_tap_h = p.s * p.group_c();
  a.b_group = p.group_k() * a.filter_pitch;
  if (forward) {
    a.source_h = p.h, a.source_w = p.w, a.source_channels = p.c;
    // A line of a window without padding is contiguous: it counts as one tap with all its channels.
    const int line = p.groups == 1 && p.pad_w == 0 && p.dilation_w == 1 ? p.s : 1;
    a.a_group = p.group_c();
    a.depth_of_tap = a.depth_per_tap = line * p.group_c();
    a.columns = a.result_group = p.group_k();
    a.result_pitch = p.k;
    a.source_step_h = p.stride_h, a.source_step_w = p.stride_w;
    a.tap_step_h = p.dilation_h, a.tap_step_w = p.dilation_w;
    a.heights[0] = make_axis(out_h, 0, -p.pad_h, p.r, 0);
    a.widths[0] = make_axis(out_w, 0, -p.pad_w, p.s / line, 0);
  } else {
    a.source_h = out_h, a.source_w = out_w, a.source_channels = p.k;
    a.a_group = a.depth_of_tap = p.group_k();
    a.depth_per_tap = ceil_div(p.group_k(), depth) * depth;
    a.columns = a.result_group = p.group_c();
    a.result_pitch = p.c;
    a.source_step_h = a.source_step_w = 1;
    const int common_h = std::gcd(p.stride_h, p.dilation_h), common_w = std::gcd(p.stride_w, p.dilation_w);
    a.tap_step_h = -p.dilation_h / common_h, a.tap_step_w = -p.dilation_w / common_w;
    a.filter_pitch_h = p.stride_h / common_h * a.filter_tap_h;
    a.filter_pitch_w = p.stride_w / common_w * a.filter_tap_w;
    a.scattered = p.stride_h > 1 || p.stride_w > 1;
    a.result_h = p.h, a.result_w = p.w, a.result_step_h = p.stride_h, a.result_step_w = p.stride_w;
    classes_h = make_classes(p.h, p.r, p.pad_h, p.stride_h, p.dilation_h, a.heights);
    classes_w = make_classes(p.w, p.s, p.pad_w, p.stride_w, p.dilation_w, a.widths);
  }
  a.same_pixels = pointwise && p.stride_h == 1 && p.stride_w == 1;
  a.by_depth_per_tap = make_divider(a.depth_per_tap);
  a.classes_w = make_divider(classes_w);
  classes = classes_h * classes_w;
  int most_h = 0, most_w = 0;
  for (int i = 0; i < classes_h; ++i) most_h = a.heights[i].count > most_h ? a.heights[i].count : most_h;
  for (int i = 0; i < classes_w; ++i) most_w = a.widths[i].count > most_w ? a.widths[i].count : most_w;
  a.rows = p.n * most_h * most_w;
  all_steps = ceil_div(a.heights[0].taps * a.widths[0].taps * a.depth_per_tap, depth);
}

inline void configure_weight_grad(const ConvProblem& p, int depth, ImplicitGemmConfig& config, int& all_steps) {
  ImplicitGemmArgs& a = config.args;
  a.rows = p.group_k();
  a.columns = a.result_pitch = p.r * p.s * p.group_c();
  a.source_h = p.h, a.source_w = p.w, a.source_channels = p.c;
  a.a_group = p.group_k(), a.b_group = p.group_c(), a.result_group = a.rows * a.columns;
  a.a_pitch = p.k;
  a.out_h = p.out_h(), a.out_w = p.out_w();
  a.pixels = p.n * a.out_h * a.out_w;
  a.stride_h = p.stride_h, a.stride_w = p.stride_w, a.pad_h = p.pad_h, a.pad_w = p.pad_w;
  a.dilation_h = p.dilation_h, a.dilation_w = p.dilation_w;
  const int images = depth / (a.out_h * a.out_w), rest = depth % (a.out_h * a.out_w);
  a.step_h = rest / a.out_w * p.stride_h, a.step_w = rest % a.out_w * p.stride_w;
  a.step_offset = ((images * p.h + a.step_h) * p.w + a.step_w) * p.c;
  a.line_offset = (p.stride_h * p.w - a.out_w * p.stride_w) * p.c;
  a.image_offset = (p.h - a.out_h * p.stride_h) * p.w * p.c;
  a.by_out_h = make_divider(a.out_h), a.by_out_w = make_divider(a.out_w);
  a.by_channels = make_divider(p.group_c()), a.by_filter_w = make_divider(p.s);
  all_steps = ceil_div(a.pixels, depth);
}

}  // namespace gemm_launch

// Why no kernel of this family computes the problem, or null.
inline const char* unsupported_by_implicit_gemm(const ConvProblem& p) {
  if (p.layout != Layout::nhwc) return "it reads NHWC only";
  if (!is_fp32_or_16_bit(p.dtype)) return "it computes fp32, fp16 and bf16 only";
  const int elements = p.dtype == DType::fp32 ? 4 : 8;
  if (p.group_c() % elements || p.group_k() % elements)
    return "the channels of a group, of input and output, are no multiples of 16 bytes";
  constexpr int64_t most = (int64_t{1} << 31) - (1 << 24);  // positions one step beyond are computed, though not read
  if (p.input_numel() >= most || p.output_numel() >= most || p.weight_numel() >= most)
    return "it counts elements by 32 bits";
  if (p.direction == Direction::input_grad &&
      (p.stride_h > kImplicitGemmMostClasses || p.stride_w > kImplicitGemmMostClasses))
    return "it computes input_grad for strides up to 4";
  if (p.groups > 65535 / (kImplicitGemmMostClasses * kImplicitGemmMostClasses)) return "there are too many groups";
  return nullptr;
}

// Configures the kernel that adds up partial sums of a result with so many elements.
inline void configure_implicit_gemm_finish(int64_t numel, int partials, int channels, int warp,
                                           ImplicitGemmFinishArgs& args, gpu::Launch& launch) {
  args.numel = numel;
  args.splits = partials;
  args.channels = make_divider(channels);
  const int64_t elements = implicit_gemm_finish_elements(warp);
  launch.blocks_x = uint32_t((numel + elements - 1) / elements);
  launch.threads = uint32_t(kImplicitGemmFinishWarps * warp);
}

// There are fewer splits than requested if the depth has fewer steps. warp: 32 or 64 threads. Returns the reason why
// this kernel doesn't compute the problem, or null.
inline const char* configure_implicit_gemm(const ConvProblem& p, const ImplicitGemmKernel& kernel,
                                           ImplicitGemmSchedule schedule, int warp, ImplicitGemmConfig& config) {
  if (const char* reason = unsupported_by_implicit_gemm(p)) return reason;
  if (!kernel.computes(p.direction) || kernel.dtype != p.dtype) return "the kernel is for another direction or type";
  const bool unpadded = p.is_1x1();
  const bool pointwise = unpadded && (p.direction != Direction::weight_grad || (p.stride_h == 1 && p.stride_w == 1));
  if (kernel.pointwise && !pointwise) return "the kernel is for filters of 1x1 without padding";

  config = {};
  const int bytes = p.dtype == DType::fp32 ? 4 : 2, depth = implicit_gemm_step_bytes(warp) / bytes;
  int classes = 1, steps = 0;
  if (p.direction == Direction::weight_grad)
    gemm_launch::configure_weight_grad(p, depth, config, steps);
  else
    gemm_launch::configure_correlation(p, kernel.pointwise, depth, config, classes, steps);

  ImplicitGemmArgs& a = config.args;
  config.steps = steps;
  if (steps < 1) steps = 1;
  int splits = schedule.splits < steps ? schedule.splits : steps;
  splits = gemm_launch::ceil_div(steps, gemm_launch::ceil_div(steps, splits));  // no split is empty,
  splits = gemm_launch::ceil_div(splits, schedule.cluster) * schedule.cluster;  // except to complete a cluster
  for (a.log_cluster = 0; 1 << a.log_cluster < schedule.cluster;) ++a.log_cluster;
  a.splits = splits;
  config.partials = a.partials = splits / schedule.cluster;
  a.by_splits = make_divider(splits);
  a.groups = make_divider(p.groups);
  const int column_tiles = gemm_launch::ceil_div(a.columns, kernel.columns);
  a.column_tiles = make_divider(column_tiles);
  a.result_numel = p.direction == Direction::forward      ? p.output_numel()
                   : p.direction == Direction::input_grad ? p.input_numel()
                                                          : p.weight_numel();

  // Tiles of rows are distributed round-robin, so that blocks that run at the same time read adjacent rows.
  const int row_tiles = gemm_launch::ceil_div(a.rows, kernel.rows);
  // Classes of pixels have different depths: blocks of the deepest class would take longest.
  const bool further =
      schedule.tiles > 1 && splits == 1 && classes == 1 && warp == 32 && p.direction != Direction::weight_grad;
  const int row_blocks = further ? gemm_launch::ceil_div(row_tiles, schedule.tiles) : row_tiles;
  config.tiles = gemm_launch::ceil_div(row_tiles, row_blocks);
  a.by_next_rows = make_divider(row_blocks * kernel.rows);

  const int stages = implicit_gemm_stages(kernel.stages, warp);
  const int stages_b = implicit_gemm_stages_b(gemm_launch::ceil_div(steps, splits), stages);
  const int tiles = (kernel.rows * (config.tiles > 1 ? stages : stages_b) + kernel.columns * stages_b) * depth * bytes;
  const int sums = warp == 32 && schedule.cluster == 1
                       ? 0
                       : implicit_gemm_slab_rows(kernel.rows, kernel.columns, kernel.warps_down, warp) *
                             implicit_gemm_sums_pitch(kernel.columns) * 4;
  config.launch.blocks_x = uint32_t(row_blocks) * uint32_t(column_tiles);
  config.launch.blocks_y = uint32_t(p.groups * classes);
  config.launch.blocks_z = uint32_t(splits);
  config.launch.threads = uint32_t(kernel.warps_down * kernel.warps_across * warp);
  config.launch.shared_bytes = uint32_t(tiles > sums ? tiles : sums);

  config.launch.cluster_z = uint32_t(schedule.cluster);

  if (config.partials > 1) {
    config.workspace_bytes = a.result_numel * 4 * config.partials;
    configure_implicit_gemm_finish(a.result_numel, config.partials, p.k, warp, config.finish_args,
                                   config.finish_launch);
  }
  return nullptr;
}

// Sets the pointers. x, y, filter: those that the direction reads; result: the computed tensor; bias: in forward, may
// be null; workspace: config.workspace_bytes, or null if that is 0.
inline void bind(ImplicitGemmConfig& config, Direction direction, const void* x, const void* y, const void* filter,
                 const void* bias, void* result, void* workspace) {
  config.args.a = direction == Direction::forward ? x : y;
  config.args.b = direction == Direction::weight_grad ? x : filter;
  config.args.bias = config.finish_args.bias = bias;
  config.args.result = config.partials > 1 ? workspace : result;
  config.finish_args.partial = static_cast<const float*>(workspace);
  config.finish_args.result = result;
}

// Schedules worth trying for a kernel that covers the problem with so many blocks: no split-K; as many splits as fill
// the GPU once, twice and four times; and, with clusters, these in clusters, and 2, 4 and 8 splits that need no finish
// kernel.
inline std::vector<ImplicitGemmSchedule> implicit_gemm_schedules(const ImplicitGemmConfig& whole, int multiprocessors,
                                                                 bool clusters) {
  const int64_t blocks = int64_t{whole.launch.blocks_x} * whole.launch.blocks_y;
  std::vector<ImplicitGemmSchedule> all = {{1, 1}};
  int last = 1;
  if (clusters)
    for (const int size : {2, 4, 8})
      if (size * 2 <= whole.steps && blocks * size <= int64_t{multiprocessors} * 6) all.push_back({size, size});
  for (const int waves : {1, 2, 4}) {
    const int64_t wanted = (int64_t{multiprocessors} * waves + blocks / 2) / blocks;
    int splits = int(wanted < whole.steps / 2 ? wanted : whole.steps / 2);
    const bool clustered = clusters && splits > 8;
    if (clustered) splits = gemm_launch::ceil_div(splits, 8) * 8;
    if (splits <= last || whole.args.result_numel * splits >= int64_t{1} << (clustered ? 30 : 27)) continue;
    last = splits;
    if (clustered) all.push_back({splits, 8});
    all.push_back({splits, 1});
  }
  return all;
}

// Occupancy: blocks that a multiprocessor runs at once.
inline int implicit_gemm_occupancy(const ImplicitGemmKernel& kernel, const gpu::Launch& launch) {
  const int threads = int(launch.threads);
  return std::max(1, std::min({(227 << 10) / (int(launch.shared_bytes) + 1024), 2048 / threads,
                               implicit_gemm_occupancy(kernel.rows, kernel.columns, threads, kernel.for_groups())}));
}

// How many tiles of rows a block should compute: so many that the blocks fill the GPU once, or several times if that
// distributes the tiles more evenly; 1 if one tile per block is expected to take no longer.
inline int implicit_gemm_tiles(const ConvProblem& p, const ImplicitGemmKernel& kernel, int warp, int multiprocessors) {
  // Costs in steps: of storing a tile, and of a block's prologue and epilogue, which do not overlap with its own work.
  // Estimated, not measured.
  constexpr int kStore = 4, kBlock = 6;
  ImplicitGemmConfig one, several;
  if (configure_implicit_gemm(p, kernel, {}, warp, one) || configure_implicit_gemm(p, kernel, {1, 1, 2}, warp, several))
    return 1;
  if (several.tiles == 1) return 1;
  const int columns = int(one.args.column_tiles.divisor), row_tiles = int(one.launch.blocks_x) / columns;
  const int64_t others = int64_t{columns} * one.launch.blocks_y;
  const auto cost = [&](int occupancy, int tiles) {  // of the multiprocessor with the most work
    const int64_t blocks = gemm_launch::ceil_div(row_tiles, tiles) * others;
    const int64_t each = (blocks + multiprocessors - 1) / multiprocessors;
    return each * tiles * (one.steps + kStore) + (each + occupancy - 1) / occupancy * occupancy * kBlock;
  };
  int best = 1;
  int64_t least = cost(implicit_gemm_occupancy(kernel, one.launch), 1);
  const int occupancy = implicit_gemm_occupancy(kernel, several.launch);
  for (int each = occupancy; each <= 8 * occupancy; ++each) {
    const int64_t wanted = int64_t{multiprocessors} * each / others;
    const int tiles = gemm_launch::ceil_div(row_tiles, int(std::clamp<int64_t>(wanted, 1, row_tiles)));
    if (tiles == 1) break;
    if (const int64_t taken = cost(occupancy, tiles); taken < least) least = taken, best = tiles;
  }
  return best;
}

// Expected microseconds of the kernel with a schedule, given the configuration without one. The constants were fitted
// to timings of 71 problems in three directions on an H200. The schedule with the least estimate takes 1.02
// (weight_grad: 1.05) times as long as the best one.
inline double implicit_gemm_us(const ImplicitGemmKernel& kernel, const ImplicitGemmConfig& whole,
                               ImplicitGemmSchedule schedule, int multiprocessors) {
  struct Model {
    double step, block, finish, bytes, cluster;  // in us; bytes per us
  };
  constexpr Model kCorrelation{0.15, 3.5, 1.5, 3e6, 2}, kWeightGrad{0.06, 2, 0.5, 12e6, 4};
  const Model& m = kernel.part == ImplicitGemmPart::weight_grad ? kWeightGrad : kCorrelation;
  const int tile = kernel.rows * kernel.columns;
  const int occupancy = implicit_gemm_occupancy(kernel, whole.launch);
  const int64_t blocks = int64_t{whole.launch.blocks_x} * whole.launch.blocks_y * schedule.splits;
  double waves = double(blocks) / (multiprocessors * occupancy);
  if (waves < 4) waves = std::max(1.0, std::ceil(waves));
  const int steps = gemm_launch::ceil_div(whole.steps, schedule.splits), partials = schedule.splits / schedule.cluster;
  double us = waves * (steps * m.step * std::sqrt(tile / 8192.0 * occupancy) + m.block);
  if (partials > 1) us += m.finish + partials * whole.args.result_numel * 8.0 / m.bytes;
  return schedule.cluster > 1 ? us + m.cluster : us;
}

}  // namespace reformer
