// Host side of hip/kernels/tma_gemm.hip and tma_windows.hip: one solver for each size of tiles.
#include <limits>

#include "conv/solver.h"
#include "hip/gpu_model.h"
#include "hip/kernels/tma_gemm_plan.h"
#include "hip/programs/conv_program.h"
#include "jit/gpu.h"
#include "memo.h"

namespace reformer {
namespace {

// Kernels whose tiles have so many rows and columns of the product.
class GpuTmaGemm final : public Solver {
 public:
  GpuTmaGemm(const char* name, int rows, int columns) : name_(name) {
    for (const TmaGemmKernel& kernel : tma_gemm_kernels())
      if (kernel.rows == rows && kernel.columns == columns) kernels_.push_back(&kernel);
  }
  const char* name() const override { return name_; }
  bool runs_on(DeviceKind kind) const override { return kind == DeviceKind::cuda; }

  const char* refusal(const ConvProblem& p, const Device& device) const override {
    if (device.arch != "sm_90") return "it is for Hopper GPUs (sm_90)";
    return refuse_tma_gemm(p);
  }

  double estimate_us(const ConvProblem& p, const Device& device) const override { return choose(p, device).us; }

  int64_t workspace_bytes(const ConvProblem& p, const Device& device) const override {
    return choose(p, device).plan.workspace_bytes;
  }

  void run(const ConvProblem& p, const Device& device, ConvCall& call) const override {
    Choice chosen = choose(p, device);
    TmaGemmPlan& plan = chosen.plan;
    const ConvBuffers b = call.buffers(plan.workspace_bytes);
    void* const results[] = {b.y, b.x, b.w};
    bind(plan, *chosen.kernel, b.x, b.y, b.w, b.bias, results[size_t(p.direction)], b.workspace);
    gpu::launch(chosen.kernel->entry, plan.launch, b.queue, &plan.args, chosen.kernel->args_bytes());
    if (plan.workspace_bytes)
      gpu::launch(implicit_gemm_finish(p.dtype)->entry, plan.finish_launch, b.queue, plan.finish_args);
  }

  // Partial sums are added up by another kernel.
  bool takes(const ConvProblem& p, const Device& device, const ProgramCall& program) const override {
    if (p.direction != Direction::forward || tma_gemm_layout(p) != Layout::nhwc) return false;
    if (!takes_program(program, 2, true)) return false;
    const Choice chosen = choose(p, device, program);
    return chosen.kernel && !chosen.plan.workspace_bytes;
  }

  int64_t workspace_bytes_with(const ProgramCall& program, const ConvProblem& p, const Device& device) const override {
    const Choice chosen = choose(p, device, program);
    return partial_bytes(program, tma_gemm_parts(*chosen.kernel, chosen.plan.args));
  }

  void run_with(const ProgramCall& program, const ConvProblem& p, const Device& device,
                const ConvBuffers& b) const override {
    Choice chosen = choose(p, device, program);
    const TmaGemmKernel& kernel = *chosen.kernel;
    TmaGemmPlan& plan = chosen.plan;
    bind(plan, kernel, b.x, nullptr, b.w, nullptr, result_of(program), nullptr);
    const int parts = tma_gemm_parts(kernel, plan.args);
    const auto launch = [&](const auto& args) {
      launch_with_program(kernel.entry, plan.launch, b.queue, args, program, b.workspace, parts);
    };
    if (kernel.what.windows)
      launch(plan.args);
    else
      launch(static_cast<const TmaGemmArgs&>(plan.args));
  }

 private:
  struct Choice {
    const TmaGemmKernel* kernel = nullptr;
    TmaGemmPlan plan;
    double us = std::numeric_limits<double>::infinity();
  };
  Choice choose(const ConvProblem& p, const Device& device) const {
    return memo_.get(p, device, [&] { return best(p, device, false); });
  }
  Choice choose(const ConvProblem& p, const Device& device, const ProgramCall& program) const {
    if (program.program.reductions.empty()) return choose(p, device);
    return reducing_.get(p, device, [&] { return best(p, device, true); });
  }
  // reduces: the program reduces over all rows. Each block leaves a partial result, so blocks have to compute several
  // tiles.
  Choice best(const ConvProblem& p, const Device& device, bool reduces) const {
    const int units = usual_units(device.arch);
    Choice best, tried;
    for (const TmaGemmKernel* kernel : kernels_) {
      if (!kernel->computes(p)) continue;
      for (const TmaGemmSchedule& schedule : tma_gemm_schedules(p, *kernel, units)) {
        tried.kernel = kernel;
        plan_tma_gemm(p, *kernel, schedule, tried.plan);
        if (reduces && (schedule.splits > 1 || tma_gemm_parts(*kernel, tried.plan.args) > kMostParts * units)) continue;
        tried.us = tma_gemm_us(p, *kernel, tried.plan, units);
        if (tried.us < best.us) best = tried;
      }
    }
    return best;
  }

  static constexpr int kMostParts =
      6;  // partial results a channel and multiprocessor: as many of the smallest tiles fill it once
  const char* name_;
  std::vector<const TmaGemmKernel*> kernels_;
  const Memo<Choice> memo_, reducing_;
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
