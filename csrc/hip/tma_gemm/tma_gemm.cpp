// Host side of tma_gemm.hip and tma_windows.hip: one solver for each tile size.
#include <limits>

#include "hip/devices.h"
#include "hip/gpu_solver.h"
#include "jit/gpu.h"
#include "tma_program_launch.h"

namespace reformer {
namespace {

// Kernels whose tiles have so many rows and columns of the product.
class GpuTmaGemm final : public GpuSolver {
 public:
  GpuTmaGemm(const char* name, int rows, int columns, TmaConsumers consumers = TmaConsumers::cooperative)
      : name_(name) {
    for (const TmaGemmKernel& kernel : tma_gemm_kernels())
      if (kernel.tile.rows == rows && kernel.tile.columns == columns && kernel.tile.consumers == consumers)
        kernels_.push_back(&kernel);
  }
  const char* name() const override { return name_; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (!has_tma(device.arch)) return "it is for Hopper GPUs (sm_90)";
    if (const char* why = unsupported_by_tma_gemm(p)) return why;
    const Choice chosen = best(p, device);
    if (!chosen.is_there()) return "there are no such kernels for this problem";
    ConvPlan plan;
    plan.us = chosen.us;
    plan.workspace_bytes = chosen.config.workspace_bytes;
    plan.run = [chosen, direction = p.direction, kernel = gpu::Kernel(chosen.kernel.entry),
                finish = gpu::Kernel(implicit_gemm_finish(p.dtype)->entry)](const ConvBuffers& b) {
      TmaGemmConfig bound = chosen.config;
      void* const results[] = {b.y, b.x, b.w};
      bind(bound, chosen.kernel, b.x, b.y, b.w, b.bias, results[size_t(direction)], b.workspace);
      gpu::launch(kernel, bound.launch, b.queue, &bound.args, chosen.kernel.args_bytes());
      if (bound.workspace_bytes) gpu::launch(finish, bound.finish_launch, b.queue, bound.finish_args);
    };
    return plan;
  }

  Planned<ConvPlan> plan_with(const ProgramCall& program, const ConvProblem& p, const Device& device) const override {
    const bool has_kernel =
        p.direction == Direction::forward || (p.direction == Direction::input_grad && !has_tma_windows(p));
    if (!has_kernel || tma_gemm_layout(p) != Layout::nhwc || !supports_program(program, {2, Reduces::result}))
      return "it does not run such a program";
    const TmaEpilogue epilogue = tma_epilogue(tma_tensors(program));
    const Choice chosen = best(p, device, epilogue, !program.program.reductions.empty());
    if (!chosen.is_there()) return "its memory or its partial results would not suffice";
    if (chosen.config.workspace_bytes) return "another kernel adds up its partial sums";
    const TmaGemmProgram kernel(chosen.kernel, chosen.config, program);
    ConvPlan plan;
    plan.workspace_bytes = kernel.workspace_bytes();
    plan.run_with = [kernel, forward = p.direction == Direction::forward](const ConvBuffers& b,
                                                                          const ProgramCall& call) {
      kernel.launch(b.queue, forward ? b.x : b.y, b.w, call, b.workspace);
    };
    return plan;
  }

 private:
  struct Choice {
    TmaGemmKernel kernel;
    TmaGemmConfig config;
    double us = std::numeric_limits<double>::infinity();
    bool is_there() const { return us < std::numeric_limits<double>::infinity(); }
  };
  // reduces: the program reduces over all rows. Each block leaves a partial result, so blocks must compute several
  // tiles each.
  Choice best(const ConvProblem& p, const Device& device, const TmaEpilogue& epilogue = {},
              bool reduces = false) const {
    const int units = usual_units(device.arch);
    Choice best, tried;
    for (const TmaGemmKernel* kernel : kernels_) {
      if (!kernel->computes(p)) continue;
      tried.kernel = kernel->with(epilogue);
      if (tried.kernel.tile.stages < 2) continue;  // nothing would be loaded during a product
      for (const TmaGemmSchedule& schedule : tma_gemm_schedules(p, tried.kernel, units)) {
        configure_tma_gemm(p, tried.kernel, schedule, tried.config);
        if (reduces && (schedule.splits > 1 || tma_gemm_parts(tried.kernel, tried.config.args) > kMostParts * units))
          continue;
        tried.us = tma_gemm_us(p, tried.kernel, tried.config, units);
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
const Solver& gpu_tma_gemm_pingpong_128x192() { static const GpuTmaGemm solver("gpu_tma_gemm_pingpong_128x192", 128, 192, TmaConsumers::pingpong); return solver; }
const Solver& gpu_tma_gemm_pingpong_128x128() { static const GpuTmaGemm solver("gpu_tma_gemm_pingpong_128x128", 128, 128, TmaConsumers::pingpong); return solver; }
// clang-format on

}  // namespace reformer
