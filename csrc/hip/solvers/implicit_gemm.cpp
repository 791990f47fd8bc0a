// Host side of hip/kernels/implicit_gemm.hip: one solver for each size of tiles.
#include "../../solver_list.h"
#include "../kernels/implicit_gemm_plan.h"
#include "gpu_model.h"

namespace reformer {
namespace {

// Tiles of so many rows and columns of the product.
class GpuGemm final : public Solver {
 public:
  GpuGemm(const char* name, int rows, int columns) : name_(name) {
    for (const ImplicitGemmKernel& kernel : implicit_gemm_kernels())
      if (kernel.part != ImplicitGemmPart::finish && kernel.rows == rows && kernel.columns == columns)
        table_[size_t(kernel.part)][size_t(kernel.dtype)][kernel.pointwise][kernel.for_groups()] = &kernel;
  }
  const char* name() const override { return name_; }
  bool runs_on(DeviceKind kind) const override { return kind == DeviceKind::cuda; }

  const char* refusal(const ConvProblem& p, const Device& device) const override {
    if (const char* why = refuse_implicit_gemm(p)) return why;
    const ImplicitGemmKernel* found = kernel(p, device);
    if (!found) return "it is not compiled for this data type and architecture";
    if (plan(p, *found, device).launch.shared_bytes > uint32_t(most_shared_bytes(device.arch)))
      return "its tiles take more shared memory than there is";
    return nullptr;
  }

  // NVIDIA's matrix cores round fp32 to tf32. PyTorch's convolutions do so too unless they are told not to, which is
  // not to be seen from here.
  bool full_accuracy(const ConvProblem& p, const Device& device) const override {
    return p.dtype != DType::fp32 || warp(device) == 64;
  }

  // About what cuDNN takes (aten_solvers.cpp), and then some: cuDNN is chosen unless weights know better.
  double estimate_us(const ConvProblem& p, const Device&) const override { return gpu_estimate_us(p, 0.25); }

  int64_t workspace_bytes(const ConvProblem& p, const Device& device) const override {
    return plan(p, *kernel(p, device), device).workspace_bytes;
  }

  void run(const ConvProblem& p, const Device& device, ConvCall& call) const override {
    const ImplicitGemmKernel& kernel = *this->kernel(p, device);
    ImplicitGemmPlan plan = this->plan(p, kernel, device);
    const ConvBuffers b = call.buffers(plan.workspace_bytes);
    void* const results[] = {b.y, b.x, b.w};
    bind(plan, p.direction, b.x, b.y, b.w, b.bias, results[size_t(p.direction)], b.workspace);
    gpu::launch(kernel.entry, plan.launch, b.queue, plan.args);
    if (plan.partials > 1)
      gpu::launch(implicit_gemm_finish(p.dtype)->entry, plan.finish_launch, b.queue, plan.finish_args);
  }

 private:
  // What a device has: warps of AMD's matrix cores are twice as wide; Hopper multiplies by groups of warps, and lets
  // blocks read each other's sums.
  static int warp(const Device& device) { return warp_size(device.arch); }
  static bool is_hopper(const Device& device) { return device.arch == "sm_90"; }

  const ImplicitGemmKernel* kernel(const ConvProblem& p, const Device& device) const {
    const bool pointwise =
        p.is_1x1() && (p.direction != Direction::weight_grad || (p.stride_h == 1 && p.stride_w == 1));
    const auto& found = table_[size_t(p.direction)][size_t(p.dtype)][pointwise];
    const bool groups = is_hopper(device) && p.dtype != DType::fp32;
    return groups && found[true] ? found[true] : groups && !is_small(found[false]) ? nullptr : found[false];
  }
  // Those that sm_90a has also where it has groups (X in implicit_gemm.inc).
  static bool is_small(const ImplicitGemmKernel* kernel) { return kernel && kernel->columns == 32; }

  static ImplicitGemmPlan plan(const ConvProblem& p, const ImplicitGemmKernel& kernel, const Device& device) {
    const int32_t units = usual_units(device.arch);
    ImplicitGemmPlan whole, plan;
    plan_implicit_gemm(p, kernel, {}, warp(device), whole);
    ImplicitGemmCut best;
    double least = std::numeric_limits<double>::infinity();
    for (const ImplicitGemmCut& cut : implicit_gemm_cuts(whole, units, is_hopper(device))) {
      const double us = implicit_gemm_us(kernel, whole, cut, units);
      if (us < least) least = us, best = cut;
    }
    if (best.splits == 1) best.tiles = implicit_gemm_tiles(p, kernel, warp(device), units);
    plan_implicit_gemm(p, kernel, best, warp(device), plan);
    return plan;
  }

  const char* name_;
  const ImplicitGemmKernel* table_[3][5][2][2] = {};  // direction, data type, pointwise, for groups
};

}  // namespace

// clang-format off: one line a solver
const Solver& gpu_gemm_128x256() { static const GpuGemm solver("gpu_gemm_128x256", 128, 256); return solver; }
const Solver& gpu_gemm_128x128() { static const GpuGemm solver("gpu_gemm_128x128", 128, 128); return solver; }
const Solver& gpu_gemm_128x64() { static const GpuGemm solver("gpu_gemm_128x64", 128, 64); return solver; }
const Solver& gpu_gemm_64x128() { static const GpuGemm solver("gpu_gemm_64x128", 64, 128); return solver; }
const Solver& gpu_gemm_64x64() { static const GpuGemm solver("gpu_gemm_64x64", 64, 64); return solver; }
const Solver& gpu_gemm_128x32() { static const GpuGemm solver("gpu_gemm_128x32", 128, 32); return solver; }
const Solver& gpu_gemm_64x32() { static const GpuGemm solver("gpu_gemm_64x32", 64, 32); return solver; }
const Solver& gpu_gemm_32x32() { static const GpuGemm solver("gpu_gemm_32x32", 32, 32); return solver; }
// clang-format on

}  // namespace reformer
