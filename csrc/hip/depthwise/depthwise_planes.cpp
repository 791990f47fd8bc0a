// Host side of depthwise_planes.hip.
#include "depthwise_planes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "depthwise_finish.h"
#include "hip/devices.h"
#include "hip/gpu_cost.h"
#include "hip/gpu_solver.h"
#include "jit/gpu.h"
#include "rounding.h"

namespace reformer {
namespace {

struct Kernel {
  gpu::Entry entry;
  Direction direction;
  DType dtype;
  int32_t filter, stride, rows, columns;
};

constexpr Direction forward = Direction::forward, input_grad = Direction::input_grad,
                    weight_grad = Direction::weight_grad;
constexpr DType bf16 = DType::bf16, fp16 = DType::fp16, fp32 = DType::fp32;
constexpr Kernel kKernels[] = {
#define X(what, T, R, ST, TR, TW)                                                                  \
  {{"depthwise/depthwise_planes", "depthwise_planes_" #what "_" #T "_" #R "_" #ST "_" #TR "x" #TW, \
    #what ", " #T ", " #R ", " #ST ", " #TR ", " #TW},                                             \
   what,                                                                                           \
   T,                                                                                              \
   R,                                                                                              \
   ST,                                                                                             \
   TR,                                                                                             \
   TW},
#include "depthwise_planes.inc"
#undef X
};

struct PlanesConfig {
  DepthwisePlanesArgs args{};
  gpu::Launch launch;
};

// Launch configuration of a kernel for a problem, computed step by step.
class Planner {
 public:
  Planner(const ConvProblem& problem, const Kernel& kernel, const std::string& arch)
      : p(problem),
        kernel(kernel),
        warp(warp_size(arch)),
        units(usual_units(arch)),
        most_shared(most_shared_bytes(arch)),
        grad(p.direction == input_grad),
        bytes(int32_t(element_size(p.dtype))),
        h(p.direction == input_grad ? p.h : p.out_h()),
        w(p.direction == input_grad ? p.w : p.out_w()),
        shift_h(planes_shift(p.r, p.stride_h, grad, p.pad_h)),
        shift_w(planes_shift(p.r, p.stride_h, grad, p.pad_w)),
        down(parts(h + shift_h, kernel.rows)),
        across(parts(w + shift_w, kernel.columns)) {}

  PlanesConfig config() const {
    TileSchedule best = make_schedule(1, 1);  // the smallest tiles
    double least = cost(best);
    for (int32_t threads = warp; threads <= kDepthwisePlanesThreads; threads += warp) {
      TileSchedule candidates[2];
      int32_t count = 0;
      if (down * across <= threads) candidates[count++] = make_schedule(std::min(p.c, threads / (down * across)), down);
      if (across <= threads) candidates[count++] = make_schedule(1, parts(down, parts(down, threads / across)));
      for (int32_t i = 0; i < count; ++i)
        if (const double us = cost(candidates[i]); us < least - 1e-9 && tile_bytes(candidates[i]) <= kTileBytes)
          least = us, best = candidates[i];
    }
    return config(best);
  }

  // Elements computed for each element that exists.
  double vain() const { return double(down) * kernel.rows * across * kernel.columns / (double(h) * w); }

  // Strips that fill the rows exactly are stored directly; others may begin anywhere.
  PlaneStore store() const {
    if (shift_w == 0 && w % kernel.columns == 0) return PlaneStore::strips;
    return shift_w == 0 && w % 2 == 0 && bytes == 2 ? PlaneStore::pairs : PlaneStore::elements;
  }

 private:
  static constexpr int32_t kTileBytes = 36 << 10, kThreadsPerUnit = 640;

  // The tile schedule: planes per block, and rows of strips per band (`down` if planes are not divided into bands).
  struct TileSchedule {
    int32_t planes, strips_down, bands, workers, threads;
  };
  TileSchedule make_schedule(int32_t planes, int32_t strips_down) const {
    const int32_t workers = std::min(strips_down * across, kDepthwisePlanesThreads / planes);
    return {planes, strips_down, parts(down, strips_down), workers, up(planes * workers, warp)};
  }

  PlaneTile source_tile(const TileSchedule& schedule) const {
    const int32_t margin = planes_margin(bytes), head = planes_head(p.r, p.stride_h, grad);
    const int32_t rows_down = schedule.strips_down * kernel.rows;
    const int32_t end = margin - head + (across - 1) * planes_step(p.stride_h, grad, kernel.columns) +
                        planes_window(p.r, p.stride_h, grad, kernel.columns);
    PlaneTile t{};
    t.h = grad ? p.out_h() : p.h;
    t.w = grad ? p.out_w() : p.w;
    t.origin = margin - head - planes_first(p.r, p.stride_h, grad, p.pad_w);
    t.band_rows = t.h;
    if (schedule.bands > 1) {
      t.first = planes_first(p.r, p.stride_h, grad, p.pad_h);
      t.step = planes_step(p.stride_h, grad, rows_down);
      t.band_rows = planes_window(p.r, p.stride_h, grad, rows_down);
    }
    // Past a row's end, windows read the zeros at the beginning of the next row. Wide words reach 3 elements further.
    finish(t, schedule, end - t.origin, end + 3);
    return t;
  }
  PlaneTile y_tile(const TileSchedule& schedule) const {
    PlaneTile t{};
    t.h = h, t.w = w;
    t.step = t.band_rows = schedule.strips_down * kernel.rows;
    if (schedule.bands == 1) t.band_rows = h;
    finish(t, schedule, across * kernel.columns, across * kernel.columns);
    return t;
  }
  void finish(PlaneTile& t, const TileSchedule& schedule, int32_t least_pitch, int32_t zeros) const {
    const int32_t margin = planes_margin(bytes);
    t.rows = schedule.planes * std::min(t.band_rows, t.h);
    t.pitch = up(std::max(t.origin + t.w, least_pitch), margin);
    t.zeros = up(zeros, margin);
    t.copy_bytes = std::gcd(16, std::gcd(t.w, t.origin) * bytes);
    t.by_copies = make_divider(t.w * bytes / t.copy_bytes);
    t.by_margins = make_divider(std::max(1, (t.pitch - t.w) * bytes / t.copy_bytes));
    const int32_t run_bytes = common_bytes(schedule, t.h * t.w, std::gcd(std::gcd(t.first, t.step), t.band_rows) * t.w);
    if (t.copy_bytes >= 4 || run_bytes < 4) return;
    t.run_bytes = run_bytes;
    t.run_size = up(t.rows * t.w * bytes, 16);
  }
  // The widest word (bytes) to which the planes of all blocks, and the bands if there are any, are aligned.
  int32_t common_bytes(const TileSchedule& schedule, int32_t plane, int32_t of_bands) const {
    const int64_t common = std::gcd(int64_t{schedule.planes} * plane, int64_t{p.c} * plane);
    return int32_t(std::gcd(int64_t{16}, std::gcd(common, int64_t{schedule.bands > 1 ? of_bands : 0}) * bytes));
  }
  int32_t tile_bytes(const PlaneTile& t, int32_t buffers) const {
    return ((t.run_bytes ? 1 : buffers) * t.rows * t.pitch + t.zeros) * bytes + buffers * t.run_size;
  }
  void place(PlaneTile& t, int32_t offset) const {
    t.offset = offset;
    t.run_offset = offset + (t.rows * t.pitch + t.zeros) * bytes;
  }
  int32_t tile_bytes(const TileSchedule& schedule, int32_t buffers = 1) const {
    return tile_bytes(source_tile(schedule), buffers) +
           (p.direction == weight_grad ? tile_bytes(y_tile(schedule), buffers) : 0);
  }

  // Bytes per access when results are stored from shared memory.
  int32_t store_bytes(const TileSchedule& schedule) const {
    return common_bytes(schedule, h * w, std::gcd(schedule.strips_down * kernel.rows, shift_h) * w);
  }

  // The relative cost of a schedule: idle threads, rows read by several bands, stores by narrow words, blocks of few
  // threads, and multiprocessors with less work than others.
  double cost(const TileSchedule& schedule) const {
    const double rounds = parts(schedule.strips_down * across, schedule.workers);
    const double groups = parts(p.c, schedule.planes), rows = schedule.bands * schedule.strips_down;
    const double lanes = rounds * schedule.threads * groups * schedule.bands / (double(p.c) * down * across);
    double cost = lanes;
    if (schedule.bands > 1) {
      const PlaneTile t = source_tile(schedule);
      cost *= 1 + 0.3 * (double(t.band_rows) / t.step - 1) * rows / down;
    }
    if (p.direction != weight_grad && store() != PlaneStore::strips) {
      const int32_t at_once = store_bytes(schedule);
      cost *= at_once == 16 ? 1 : at_once == 8 ? 1.03 : at_once == 4 ? 1.08 : 1.2;
    }
    if (schedule.threads < 128) cost *= 1 + 0.1 * (128 - schedule.threads) / 128;
    const double blocks = groups * schedule.bands * p.n;
    if (blocks < 4 * units) cost *= std::ceil(blocks / units) * units / blocks;
    return cost;
  }

  // Number of blocks that share the tiles. With more tiles per block, more of them are copied while another one is
  // computed, but fewer blocks keep the slots busy until the end. The unit of time is one tile; the first tile of a
  // block costs more, and so do weight_grad's partial sums.
  int32_t splits(int32_t groups, int32_t tiles, int32_t slots) const {
    constexpr int32_t kMostTiles = 32;
    const double start = p.direction == weight_grad ? 2 : 0.7;
    double least = 1e30;
    int32_t best = tiles;
    for (int32_t tiles_each = 1; tiles_each <= std::min(tiles, kMostTiles); ++tiles_each) {
      const int32_t splits = parts(tiles, tiles_each);
      const double time = double((int64_t{groups} * splits + slots - 1) / slots) * (tiles_each + start);
      if (time < least) least = time, best = splits;
    }
    return best;
  }

  PlanesConfig config(const TileSchedule& schedule) const {
    PlanesConfig config;
    DepthwisePlanesArgs& a = config.args;
    a.channels = p.c, a.planes = schedule.planes;
    a.threads = schedule.threads, a.workers = schedule.workers;
    a.strips = schedule.strips_down * across, a.strips_down = schedule.strips_down;
    a.rows_down = schedule.strips_down * kernel.rows;
    a.shift_h = shift_h, a.shift_w = shift_w;
    a.first_row = planes_first(p.r, p.stride_h, grad, p.pad_h);
    a.h = h, a.w = w;
    a.tiles = p.n * schedule.bands;
    const int32_t groups = parts(p.c, schedule.planes);
    a.splits = splits(groups, a.tiles, units * std::max(2, kThreadsPerUnit / schedule.threads));
    if (shared_bytes(config, schedule) > most_shared) a.splits = a.tiles;  // no room for two tiles
    while (1 << (a.log_lanes + 1) <= std::min(32, schedule.workers / 4)) ++a.log_lanes;
    a.by_workers = make_divider(schedule.workers);
    a.by_across = make_divider(across);
    a.by_bands = make_divider(schedule.bands);
    config.launch = {uint32_t(groups), uint32_t(a.splits), 1, uint32_t(schedule.threads),
                     uint32_t(shared_bytes(config, schedule))};
    config.launch.pdl = true;
    return config;
  }

  // Divides the shared memory and returns its size.
  int32_t shared_bytes(PlanesConfig& config, const TileSchedule& schedule) const {
    DepthwisePlanesArgs& a = config.args;
    const int32_t buffers = a.splits < a.tiles ? 2 : 1;
    a.source_tile = source_tile(schedule);
    place(a.source_tile, 0);
    const int32_t source_bytes = tile_bytes(a.source_tile, buffers);
    if (p.direction == weight_grad) {
      a.y_tile = y_tile(schedule);
      place(a.y_tile, source_bytes);
      return std::max(source_bytes + tile_bytes(a.y_tile, buffers),
                      up(p.r * schedule.threads * int32_t(sizeof(float)), 16));
    }
    a.store = store();
    a.store_bytes = store_bytes(schedule);
    a.store_offset = source_bytes;
    const int32_t staged = schedule.planes * std::min(a.rows_down, h) * w * bytes;
    return source_bytes + (a.store == PlaneStore::strips ? 0 : up(staged, 16));
  }

  const ConvProblem& p;
  const Kernel& kernel;
  const int32_t warp, units, most_shared;
  const bool grad;
  const int32_t bytes, h, w, shift_h, shift_w;
  const int32_t down, across;  // strips per plane
};

// The kernels with TW columns per strip: 8 for wide strips, 4 for tall ones of 7 or 8 rows.
template <int32_t TW>
class GpuDepthwisePlanes final : public GpuSolver {
 public:
  explicit GpuDepthwisePlanes(const char* name) : name_(name) {
    for (const Kernel& kernel : kKernels)
      if (kernel.columns == TW)
        table_[size_t(kernel.direction)][size_t(kernel.dtype)][kernel.filter][kernel.stride] = &kernel;
  }
  const char* name() const override { return name_; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (p.dtype != bf16 && p.dtype != fp16 && p.dtype != fp32) return "it computes fp32, fp16 and bf16 only";
    if (p.layout != Layout::nchw) return "it reads NCHW only";
    if (p.groups != p.c || p.k != p.c) return "it needs one filter a channel";
    if (p.r != p.s || p.stride_h != p.stride_w) return "the filter is not square, or its strides differ";
    if (p.dilation_h != 1 || p.dilation_w != 1) return "the filter is dilated";
    const Kernel* const kernel = this->kernel(p);
    if (!kernel) return "it is not compiled for this size of filter and stride";
    if (TW == 4 && p.r > 3 && warp_size(device.arch) == 64) return "it is not compiled for wide filters on AMD's GPUs";
    if (p.pad_h >= p.r || p.pad_w >= p.s) return "the padding is as wide as the filter";
    const Planner planner(p, *kernel, device.arch);
    const PlanesConfig made = planner.config();
    if (made.launch.shared_bytes > uint32_t(most_shared_bytes(device.arch)))
      return "its rows take more shared memory than there is";
    if (made.launch.blocks_y > kMostBlocksY) return "its batch takes more blocks than a launch may have";
    const auto finish = depthwise_finish(p, made.args.splits);
    ConvPlan plan;
    plan.us = estimate_us(p, planner);
    if (finish) plan.workspace_bytes = finish->workspace_bytes();
    plan.run = [made, finish, kernel = gpu::Kernel(kernel->entry), direction = p.direction](const ConvBuffers& b) {
      DepthwisePlanesArgs a = made.args;
      a.source = direction == input_grad ? b.y : b.x;
      a.y = b.y, a.filter = b.w, a.bias = b.bias;
      a.result = direction == forward ? b.y : direction == input_grad ? b.x : b.workspace;
      gpu::launch(kernel, made.launch, b.queue, a);
      if (finish) finish->run(b);
    };
    return plan;
  }

 private:
  static constexpr int32_t kMostFilter = 7, kMostStride = 2;
  static constexpr uint32_t kMostBlocksY = 65535;

  // Null if there is none.
  const Kernel* kernel(const ConvProblem& p) const {
    if (p.r > kMostFilter || p.stride_h > kMostStride) return nullptr;
    return table_[size_t(p.direction)][size_t(p.dtype)][p.r][p.stride_h];
  }
  // Elements outside of the planes are wasted work. Tall strips read more columns per computed column, and wide strips
  // of a 7 x 7 filter more rows. Results that are not stored from registers take another pass through shared memory.
  // Derived from instruction counts, not from timings.
  static double estimate_us(const ConvProblem& p, const Planner& planner) {
    const PlaneStore store = planner.store();
    const double stored = store == PlaneStore::strips ? 1 : store == PlaneStore::pairs ? 1.1 : 1.2;
    return gpu_estimate_us(p, 0.4 / (planner.vain() * stored * ((TW == 4) == (p.r < 7) ? 1.05 : 1)));
  }

  const char* name_;
  const Kernel* table_[3][5][kMostFilter + 1][kMostStride + 1] = {};
};

}  // namespace

const Solver& gpu_depthwise_planes_wide() {
  static const GpuDepthwisePlanes<8> solver("gpu_depthwise_planes_wide");
  return solver;
}
const Solver& gpu_depthwise_planes_tall() {
  static const GpuDepthwisePlanes<4> solver("gpu_depthwise_planes_tall");
  return solver;
}

}  // namespace reformer
