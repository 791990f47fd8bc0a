// Host side of depthwise.hip.
#include "depthwise.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "depthwise_finish.h"
#include "hip/devices.h"
#include "hip/gpu_cost.h"
#include "hip/gpu_solver.h"
#include "jit/gpu.h"
#include "rounding.h"

namespace reformer {
namespace {

using gpu::Entry;

struct Kernel {
  Entry entry;
  const char* what;
  DType dtype;
  int32_t filter, stride, channels, columns;
};

constexpr DType bf16 = DType::bf16, fp16 = DType::fp16, fp32 = DType::fp32;
constexpr Kernel kKernels[] = {
#define X(what, T, R, ST, V, TW)                                                    \
  {{"depthwise/depthwise", "depthwise_" #what "_" #T "_" #R "_" #ST "_" #V "_" #TW, \
    #what ", " #T ", " #R ", " #ST ", " #V ", " #TW},                               \
   #what,                                                                           \
   T,                                                                               \
   R,                                                                               \
   ST,                                                                              \
   V,                                                                               \
   TW},
#include "depthwise.inc"
#undef X
};

// The kernels for one shape of strips, by direction, data type, filter and stride.
class KernelTable {
 public:
  KernelTable(int32_t channels, int32_t columns) {
    for (const Kernel& kernel : kKernels)
      for (size_t direction = 0; direction < 3; ++direction) {
        const bool strided_input_grad = direction == size_t(Direction::input_grad) && kernel.stride > 1;
        const int32_t wanted = strided_input_grad ? up(columns, kernel.stride) : columns;
        if (!std::strcmp(kernel.what, kWhat[direction]) && kernel.channels == channels && kernel.columns == wanted)
          table_[direction][size_t(kernel.dtype)][kernel.filter][kernel.stride] = &kernel;
      }
  }
  // Null if there is none.
  const Kernel* find(const ConvProblem& p) const {
    if (p.r > kMostFilter || p.stride_h > kMostStride) return nullptr;
    return table_[size_t(p.direction)][size_t(p.dtype)][p.r][p.stride_h];
  }

 private:
  static constexpr int32_t kMostFilter = 7, kMostStride = 2;
  static constexpr const char* kWhat[] = {"forward", "input_grad", "weight_grad"};
  const Kernel* table_[3][5][kMostFilter + 1][kMostStride + 1] = {};
};

const Kernel& finish_of(DType dtype) {
  return *std::find_if(std::begin(kKernels), std::end(kKernels), [&](const Kernel& kernel) {
    return !std::strcmp(kernel.what, "finish") && kernel.dtype == dtype;
  });
}

struct DepthwiseConfig {
  DepthwiseArgs args{};
  gpu::Launch launch;
};

// Launch configuration of a kernel, with V channels and TW columns per strip, for a problem.
DepthwiseConfig configure(const ConvProblem& p, const Kernel& kernel, const std::string& arch) {
  constexpr int32_t kTileBytes = 36 << 10, kBlocksPerUnit = 3, kMostColumns = 32, kThreads = 128;
  constexpr double kLanePenalty = 0.12,
                   kSectorPenalty = 0.5;  // for fewer than 32 lanes; for less than 32 bytes per pixel
  const int32_t bytes = int32_t(element_size(p.dtype)), filter = p.r, stride = p.stride_h;
  const int32_t most_shared = most_shared_bytes(arch),
                most_pixel_bytes = bytes == 2 || most_shared <= 64 << 10 ? 128 : 256;
  const bool input_grad = p.direction == Direction::input_grad, weight_grad = p.direction == Direction::weight_grad;

  DepthwiseConfig config;
  DepthwiseArgs& a = config.args;
  a.channels = p.c;
  a.h = p.h, a.w = p.w, a.out_h = p.out_h(), a.out_w = p.out_w();
  a.pad_h = p.pad_h, a.pad_w = p.pad_w;
  a.taps = filter * filter;
  a.copy_bytes = p.c * bytes % 16 == 0 ? 16 : p.c * bytes % 8 == 0 ? 8 : 4;

  // Channels per block: few idle lanes, and long runs of memory.
  double least = 1e30;
  for (int32_t log_lanes = 5; log_lanes >= 0; --log_lanes) {
    const int32_t channels = kernel.channels << log_lanes, pixel = channels * bytes;
    if (pixel > most_pixel_bytes || pixel < a.copy_bytes) continue;
    const double cost =
        double(up(p.c, channels)) / p.c * (1 + kLanePenalty * (5 - log_lanes) + (pixel < 32 ? kSectorPenalty : 0));
    if (cost < least - 1e-9) least = cost, a.log_lanes = log_lanes;
  }
  const int32_t channels = kernel.channels << a.log_lanes, groups = parts(p.c, channels), pixel = channels * bytes;

  // Sizes of the tiles. Strips of a strided input_grad begin where the padded row and column are multiples of the
  // stride.
  const bool strided = input_grad && stride > 1;
  const int32_t strip_rows = strided ? stride : stride == 1 ? kDepthwiseRows<1> : kDepthwiseRows<2>;
  const int32_t height = input_grad ? p.h + p.pad_h % stride : p.out_h();
  const int32_t width = input_grad ? p.w + p.pad_w % stride : p.out_w();
  const auto source = [&](int32_t size) {
    return strided ? (filter - 1) / stride + parts(size, stride) : (size - 1) * stride + filter;
  };
  const auto tile_bytes = [&](int32_t rows) {
    return (source(rows) * a.source_columns + (weight_grad ? rows * a.tile_columns : 0)) * pixel;
  };
  // Shared memory has to hold two tiles and the filter.
  const int32_t filter_bytes = weight_grad ? 0 : a.taps * depthwise_filter_pitch(channels) * int32_t(sizeof(float));
  const int32_t most_tile_bytes = (most_shared - filter_bytes) / 2;
  for (int32_t most_columns = kMostColumns;; most_columns /= 2) {
    a.tile_columns = up(parts(width, parts(width, most_columns)), kernel.columns);
    a.source_columns = source(a.tile_columns);
    if (tile_bytes(strip_rows) <= most_tile_bytes || most_columns <= kernel.columns) break;
  }
  const int32_t across = parts(width, a.tile_columns), slots = usual_units(arch) * kBlocksPerUnit;
  for (int32_t down = 1;; ++down) {
    a.tile_rows = up(parts(height, down), strip_rows);
    if (a.tile_rows <= strip_rows) break;
    if (tile_bytes(a.tile_rows) > std::min(kTileBytes, most_tile_bytes)) continue;
    const int64_t blocks = int64_t{p.n} * across * parts(height, a.tile_rows) * groups;
    const int32_t shares = a.tile_rows / strip_rows * (a.tile_columns / kernel.columns) << a.log_lanes;
    if (weight_grad || blocks >= slots * 4 / 5 || shares <= kThreads) break;
  }
  const int32_t down = parts(height, a.tile_rows), strips_across = a.tile_columns / kernel.columns;
  a.source_rows = source(a.tile_rows);
  a.strips = a.tile_rows / strip_rows * strips_across;
  a.tiles = p.n * across * down;
  // Blocks get several tiles, so as to copy one while computing another, only if there are many; else one each.
  a.splits = a.tiles;
  if (a.tiles * groups > 2 * slots) a.splits = parts(a.tiles, parts(a.tiles, std::max(1, slots / groups)));
  // If there are few blocks, they get more threads, provided that these don't need many registers each.
  const bool few = a.tiles * groups <= slots && filter < 7 && !weight_grad;
  a.threads = few && a.strips << a.log_lanes > kThreads ? 2 * kThreads : kThreads;
  a.tiles_across = make_divider(across);
  a.tiles_down = make_divider(down);
  a.by_source_places = make_divider(a.source_columns * (pixel / a.copy_bytes));
  a.by_tile_places = make_divider(a.tile_columns * (pixel / a.copy_bytes));
  a.by_strips_across = make_divider(strips_across);

  int32_t shared = (a.splits < a.tiles ? 2 : 1) * tile_bytes(a.tile_rows);
  if (weight_grad)
    shared = std::max(shared, a.taps * kernel.channels * a.threads / 2 * int32_t(sizeof(float)));
  else
    shared += filter_bytes;
  config.launch = {uint32_t(groups), uint32_t(a.splits), 1, uint32_t(a.threads), uint32_t(up(shared, 16))};
  config.launch.pdl = true;
  return config;
}

// The kernels whose strips have V channels and TW columns.
template <int32_t V, int32_t TW>
class GpuDepthwise final : public GpuSolver {
 public:
  explicit GpuDepthwise(const char* name) : name_(name), kernels_(V, TW) {}
  const char* name() const override { return name_; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (p.dtype != bf16 && p.dtype != fp16 && p.dtype != fp32) return "it computes fp32, fp16 and bf16 only";
    if (p.layout != Layout::nhwc) return "it reads NHWC only";
    if (p.groups != p.c || p.k != p.c) return "it needs one filter a channel";
    if (p.r != p.s || p.stride_h != p.stride_w) return "the filter is not square, or its strides differ";
    if (p.dilation_h != 1 || p.dilation_w != 1) return "the filter is dilated";
    if (p.c % V) return "the number of channels is no multiple of a thread's";
    const Kernel* const kernel = kernels_.find(p);
    if (!kernel) return "it is not compiled for this size of filter and stride";
    const DepthwiseConfig made = configure(p, *kernel, device.arch);
    if (made.launch.shared_bytes > uint32_t(most_shared_bytes(device.arch)))
      return "its tiles take more shared memory than there is";
    const auto finish = depthwise_finish(p, made.args.splits);
    ConvPlan plan;
    plan.us = estimate_us(p, *kernel);
    if (finish) plan.workspace_bytes = finish->workspace_bytes();
    plan.run = [made, finish, kernel = gpu::Kernel(kernel->entry), direction = p.direction](const ConvBuffers& b) {
      DepthwiseArgs a = made.args;
      a.x = b.x, a.y = b.y, a.filter = b.w, a.bias = b.bias;
      a.result = direction == Direction::forward ? b.y : direction == Direction::input_grad ? b.x : b.workspace;
      gpu::launch(kernel, made.launch, b.queue, a);
      if (finish) finish->run(b);
    };
    return plan;
  }

 private:
  // Columns of a strip outside of the image are wasted work; otherwise wide strips and few channels are better. On 364
  // problems timed on an H200 the kernel with the least estimate takes 1.03 times as long as the best of these solvers.
  static double estimate_us(const ConvProblem& p, const Kernel& kernel) {
    const int32_t width = p.direction == Direction::input_grad ? p.w : p.out_w();
    const double vain = double(up(width, kernel.columns)) / width;
    return gpu_estimate_us(p, 0.4 / (vain * (TW < 7 ? 1.06 : 1) * (V > 2 ? 1.05 : 1)));
  }

  const char* name_;
  const KernelTable kernels_;
};

}  // namespace

DepthwiseFinish::DepthwiseFinish(const ConvProblem& p, int32_t splits) : kernel_(finish_of(p.dtype).entry) {
  args_.channels = p.c, args_.taps = p.r * p.s, args_.splits = splits;
  launch_.blocks_x = uint32_t(parts(args_.taps * args_.channels, kDepthwiseFinishOutputs));
  launch_.threads = kDepthwiseThreads_finish;
  launch_.pdl = true;
}

void DepthwiseFinish::run(const ConvBuffers& b) const {
  DepthwiseArgs args = args_;
  args.x = b.workspace, args.result = b.w;
  gpu::launch(kernel_, launch_, b.queue, args);
}

const Solver& gpu_depthwise_2x4() {
  static const GpuDepthwise<2, 4> solver("gpu_depthwise_2x4");
  return solver;
}
const Solver& gpu_depthwise_2x7() {
  static const GpuDepthwise<2, 7> solver("gpu_depthwise_2x7");
  return solver;
}
const Solver& gpu_depthwise_4x4() {
  static const GpuDepthwise<4, 4> solver("gpu_depthwise_4x4");
  return solver;
}
const Solver& gpu_depthwise_4x7() {
  static const GpuDepthwise<4, 7> solver("gpu_depthwise_4x7");
  return solver;
}

}  // namespace reformer
