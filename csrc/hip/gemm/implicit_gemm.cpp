// Host side of implicit_gemm.hip: one solver for each tile size.
#include "gemm_tiles.h"
#include "hip/gpu_cost.h"
#include "hip/gpu_solver.h"
#include "hip/programs/conv_program.h"

namespace reformer {
namespace {

class GpuGemm final : public GpuSolver {
 public:
  GpuGemm(const char* name, int rows, int columns) : name_(name), tiles_(rows, columns) {}
  const char* name() const override { return name_; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    const Planned<GemmLaunch> gemm = tiles_.plan(p, device);
    if (!gemm.plan) return gemm.reason;
    ConvPlan plan;
    // Slightly above the estimate for cuDNN (aten_solvers.cpp), which is thus chosen unless weights know better.
    plan.us = gpu_estimate_us(p, 0.25);
    plan.workspace_bytes = gemm.plan->config.workspace_bytes;
    plan.inaccuracy = GemmTiles::inaccuracy(p, device);
    plan.run = [gemm = gemm.plan, direction = p.direction](const ConvBuffers& b) {
      void* const results[] = {b.y, b.x, b.w};
      ImplicitGemmConfig bound = gemm->config;
      bind(bound, direction, b.x, b.y, b.w, b.bias, results[size_t(direction)], b.workspace);
      gemm->multiply(bound, b.queue);
      gemm->finish(bound, b.queue);
    };
    return plan;
  }

  Planned<ConvPlan> plan_with(const ProgramCall& program, const ConvProblem& p, const Device& device) const override {
    if (p.direction != Direction::forward || !supports_program(program, {int(16 / element_size(p.dtype))}))
      return "it does not run such a program";
    const Planned<GemmLaunch> gemm = tiles_.plan(p, device);
    if (!gemm.plan) return gemm.reason;
    if (gemm.plan->config.partials > 1) return "another kernel adds up its partial sums";
    ConvPlan plan;
    plan.run_with = [kernel = KernelWithProgram(gemm.plan->of->entry, program), config = gemm.plan->config](
                        const ConvBuffers& b, const ProgramCall& call) {
      ImplicitGemmConfig bound = config;
      bind(bound, Direction::forward, b.x, nullptr, b.w, nullptr, kernel.result_of(call), nullptr);
      kernel.launch(bound.launch, b.queue, bound.args, call);
    };
    return plan;
  }

 private:
  const char* name_;
  const GemmTiles tiles_;
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
