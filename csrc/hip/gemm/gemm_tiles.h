// Implicit GEMM for solvers: selects the kernel of a tile size that computes a problem on a device, and its schedule.
#pragma once

#include <limits>

#include "device.h"
#include "hip/devices.h"
#include "implicit_gemm_launch.h"
#include "planned.h"

namespace reformer {

// A kernel as launched for a problem.
struct GemmLaunch {
  const ImplicitGemmKernel* of;
  gpu::Kernel kernel, finish_kernel;
  ImplicitGemmConfig config;

  GemmLaunch(const ImplicitGemmKernel& chosen, const ImplicitGemmConfig& made)
      : of(&chosen), kernel(chosen.entry), finish_kernel(implicit_gemm_finish(chosen.dtype)->entry), config(made) {}

  // bound: the configuration with its pointers. Starts the kernel, which computes the result or partial sums.
  void multiply(const ImplicitGemmConfig& bound, const gpu::Queue& queue) const {
    gpu::launch(kernel, bound.launch, queue, bound.args);
  }
  // Adds up the partial sums, if there are any.
  void finish(const ImplicitGemmConfig& bound, const gpu::Queue& queue) const {
    if (bound.partials > 1) gpu::launch(finish_kernel, bound.finish_launch, queue, bound.finish_args);
  }
};

// The kernels whose tiles have so many rows and columns of the product.
class GemmTiles {
 public:
  GemmTiles(int rows, int columns) {
    for (const ImplicitGemmKernel& kernel : implicit_gemm_kernels())
      if (kernel.part != ImplicitGemmPart::finish && kernel.rows == rows && kernel.columns == columns)
        table_[size_t(kernel.part)][size_t(kernel.dtype)][kernel.pointwise][kernel.for_groups()] = &kernel;
  }

  Planned<GemmLaunch> plan(const ConvProblem& p, const Device& device) const {
    if (const char* why = unsupported_by_implicit_gemm(p)) return why;
    const ImplicitGemmKernel* const kernel = this->kernel(p, device);
    if (!kernel) return "it is not compiled for this data type and architecture";
    const ImplicitGemmConfig made = best(p, *kernel, device);
    if (made.launch.shared_bytes > uint32_t(most_shared_bytes(device.arch)))
      return "its tiles take more shared memory than there is";
    return GemmLaunch(*kernel, made);
  }

  // NVIDIA's tensor cores round fp32 to tf32. PyTorch's convolutions also do so unless the user forbids it.
  static const char* inaccuracy(const ConvProblem& p, const Device& device) {
    if (p.dtype != DType::fp32 || warp_size(device.arch) == 64 || device.tf32) return nullptr;
    return "it rounds fp32 to tf32, which torch.backends.cudnn.conv.fp32_precision and the configuration do not allow";
  }

 private:
  static ImplicitGemmConfig best(const ConvProblem& p, const ImplicitGemmKernel& kernel, const Device& device) {
    const int warp = warp_size(device.arch);
    const int32_t units = usual_units(device.arch);
    ImplicitGemmConfig whole, config;
    configure_implicit_gemm(p, kernel, {}, warp, whole);
    ImplicitGemmSchedule best;
    double least = std::numeric_limits<double>::infinity();
    for (const ImplicitGemmSchedule& schedule : implicit_gemm_schedules(whole, units, has_tma(device.arch))) {
      const double us = implicit_gemm_us(kernel, whole, schedule, units);
      if (us < least) least = us, best = schedule;
    }
    if (best.splits == 1) best.tiles = implicit_gemm_tiles(p, kernel, warp, units);
    configure_implicit_gemm(p, kernel, best, warp, config);
    config.launch.pdl = config.finish_launch.pdl = true;
    return config;
  }

  const ImplicitGemmKernel* kernel(const ConvProblem& p, const Device& device) const {
    const bool pointwise =
        p.is_1x1() && (p.direction != Direction::weight_grad || (p.stride_h == 1 && p.stride_w == 1));
    const auto& found = table_[size_t(p.direction)][size_t(p.dtype)][pointwise];
    // Hopper multiplies by warpgroups, and its blocks can read each other's sums.
    const bool groups = has_tma(device.arch) && p.dtype != DType::fp32;
    return groups && found[true] ? found[true] : groups && !is_small(found[false]) ? nullptr : found[false];
  }
  // True for tiles that are compiled for sm_90a although it has warpgroups (X in implicit_gemm.inc).
  static bool is_small(const ImplicitGemmKernel* kernel) { return kernel && kernel->columns == 32; }

  const ImplicitGemmKernel* table_[3][5][2][2] = {};  // direction, data type, pointwise, for warpgroups
};

}  // namespace reformer
