// Host side of tma_gemm.hip and tma_windows.hip: one solver for each tile size.
#include <limits>

#include "hip/devices.h"
#include "hip/gpu_solver.h"
#include "hip/programs/conv_program.h"
#include "jit/gpu.h"
#include "tma_gemm_launch.h"

namespace reformer {
namespace {

// Kernels whose tiles have so many rows and columns of the product.
class GpuTmaGemm final : public GpuSolver {
 public:
  GpuTmaGemm(const char* name, int rows, int columns) : name_(name) {
    for (const TmaGemmKernel& kernel : tma_gemm_kernels())
      if (kernel.rows == rows && kernel.columns == columns) kernels_.push_back(&kernel);
  }
  const char* name() const override { return name_; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (!has_tma(device.arch)) return "it is for Hopper GPUs (sm_90)";
    if (const char* why = unsupported_by_tma_gemm(p)) return why;
    const Choice chosen = best(p, device, false);
    ConvPlan plan;
    plan.us = chosen.us;
    plan.workspace_bytes = chosen.config.workspace_bytes;
    plan.run = [chosen, direction = p.direction, kernel = gpu::Kernel(chosen.kernel->entry),
                finish = gpu::Kernel(implicit_gemm_finish(p.dtype)->entry)](const ConvBuffers& b) {
      TmaGemmConfig bound = chosen.config;
      void* const results[] = {b.y, b.x, b.w};
      bind(bound, *chosen.kernel, b.x, b.y, b.w, b.bias, results[size_t(direction)], b.workspace);
      gpu::launch(kernel, bound.launch, b.queue, &bound.args, chosen.kernel->args_bytes());
      if (bound.workspace_bytes) gpu::launch(finish, bound.finish_launch, b.queue, bound.finish_args);
    };
    return plan;
  }

  Planned<ConvPlan> plan_with(const ProgramCall& program, const ConvProblem& p, const Device& device) const override {
    if (p.direction != Direction::forward || tma_gemm_layout(p) != Layout::nhwc ||
        !supports_program(program, {2, Reduces::result}))
      return "it does not run such a program";
    const Choice chosen = best(p, device, !program.program.reductions.empty());
    if (!chosen.kernel) return "its blocks would leave too many partial results";
    if (chosen.config.workspace_bytes) return "another kernel adds up its partial sums";
    const int parts = tma_gemm_parts(*chosen.kernel, chosen.config.args);
    const KernelWithProgram kernel(chosen.kernel->entry, program, parts);
    ConvPlan plan;
    plan.workspace_bytes = kernel.workspace_bytes();
    plan.run_with = [chosen, kernel](const ConvBuffers& b, const ProgramCall& call) {
      TmaGemmConfig bound = chosen.config;
      bind(bound, *chosen.kernel, b.x, nullptr, b.w, nullptr, kernel.result_of(call), nullptr);
      if (chosen.kernel->what.windows)
        kernel.launch(bound.launch, b.queue, bound.args, call, b.workspace);
      else
        kernel.launch(bound.launch, b.queue, static_cast<const TmaGemmArgs&>(bound.args), call, b.workspace);
    };
    return plan;
  }

 private:
  struct Choice {
    const TmaGemmKernel* kernel = nullptr;
    TmaGemmConfig config;
    double us = std::numeric_limits<double>::infinity();
  };
  // reduces: the program reduces over all rows. Each block leaves a partial result, so blocks must compute several
  // tiles each.
  Choice best(const ConvProblem& p, const Device& device, bool reduces) const {
    const int units = usual_units(device.arch);
    Choice best, tried;
    for (const TmaGemmKernel* kernel : kernels_) {
      if (!kernel->computes(p)) continue;
      for (const TmaGemmSchedule& schedule : tma_gemm_schedules(p, *kernel, units)) {
        tried.kernel = kernel;
        configure_tma_gemm(p, *kernel, schedule, tried.config);
        if (reduces && (schedule.splits > 1 || tma_gemm_parts(*kernel, tried.config.args) > kMostParts * units))
          continue;
        tried.us = tma_gemm_us(p, *kernel, tried.config, units);
        if (tried.us < best.us) best = tried;
      }
    }
    return best;
  }

  static constexpr int kMostParts =
      6;  // partial results per channel and multiprocessor: with the smallest tiles, so many blocks fill the GPU once
  const char* name_;
  std::vector<const TmaGemmKernel*> kernels_;
};

}  // namespace

// clang-format off: one line a solver
const Solver& gpu_tma_gemm_128x256() { static const GpuTmaGemm solver("gpu_tma_gemm_128x256", 128, 256); return solver; }
const Solver& gpu_tma_gemm_128x192() { static const GpuTmaGemm solver("gpu_tma_gemm_128x192", 128, 192); return solver; }
const Solver& gpu_tma_gemm_128x128() { static const GpuTmaGemm solver("gpu_tma_gemm_128x128", 128, 128); return solver; }
const Solver& gpu_tma_gemm_128x64() { static const GpuTmaGemm solver("gpu_tma_gemm_128x64", 128, 64); return solver; }
const Solver& gpu_tma_gemm_64x128() { static const GpuTmaGemm solver("gpu_tma_gemm_64x128", 64, 128); return solver; }
const Solver& gpu_tma_gemm_64x64() { static const GpuTmaGemm solver("gpu_tma_gemm_64x64", 64, 64); return solver; }
// clang-format on

}  // namespace reformer
