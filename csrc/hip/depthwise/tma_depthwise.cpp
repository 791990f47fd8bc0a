// Host side of tma_depthwise.hip.
#include <limits>

#include "depthwise_finish.h"
#include "hip/devices.h"
#include "hip/gpu_solver.h"
#include "hip/programs/conv_program.h"
#include "jit/gpu.h"
#include "tma_depthwise_launch.h"

namespace reformer {
namespace {

class GpuTmaDepthwise final : public GpuSolver {
 public:
  const char* name() const override { return "gpu_tma_depthwise"; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (!has_tma(device.arch)) return "it is for Hopper GPUs (sm_90)";
    if (const char* why = unsupported_by_tma_depthwise(p)) return why;
    const TmaDepthwiseConfig made = best(p, usual_units(device.arch));
    if (made.launch.threads == 0) return "its tiles take more shared memory than there is";
    ConvPlan plan;
    plan.us = tma_depthwise_us(p, made, usual_units(device.arch));
    plan.workspace_bytes = made.workspace_bytes;
    plan.run = [p, made, kernel = gpu::Kernel(tma_depthwise_kernel(p)->entry),
                finish = depthwise_finish(p, made.args.blocks)](const ConvBuffers& b) {
      TmaDepthwiseConfig bound = made;
      bind(bound, p, b.x, b.y, b.w, b.bias, b.workspace);
      gpu::launch(kernel, bound.launch, b.queue, bound.args);
      if (finish) finish->run(b);
    };
    return plan;
  }

  Planned<ConvPlan> plan_with(const ProgramCall& program, const ConvProblem& p, const Device& device) const override {
    if (p.direction != Direction::forward || !supports_program(program, {2, Reduces::anything, false}))
      return "it does not run such a program";
    const TmaDepthwiseConfig made = best(p, usual_units(device.arch));
    const KernelWithProgram kernel(tma_depthwise_kernel(p)->entry, program, made.args.blocks);
    ConvPlan plan;
    plan.workspace_bytes = kernel.workspace_bytes();
    plan.run_with = [p, made, kernel](const ConvBuffers& b, const ProgramCall& call) {
      TmaDepthwiseConfig bound = made;
      bind(bound, p, b.x, kernel.result_of(call), b.w, nullptr, nullptr);
      kernel.launch(bound.launch, b.queue, bound.args, call, b.workspace);
    };
    return plan;
  }

 private:
  // The configuration with the best expected tile; has no threads if no tile fits.
  static TmaDepthwiseConfig best(const ConvProblem& p, int units) {
    TmaDepthwiseConfig best, tried;
    best.launch.threads = 0;
    double least = std::numeric_limits<double>::infinity();
    for (const TmaDepthwiseTile& tile : tma_depthwise_tiles(p)) {
      if (!configure_tma_depthwise(p, tile, units, tried)) continue;
      const double us = tma_depthwise_us(p, tried, units);
      if (us < least) least = us, best = tried;
    }
    return best;
  }
};

}  // namespace

const Solver& gpu_tma_depthwise() {
  static const GpuTmaDepthwise solver;
  return solver;
}

}  // namespace reformer
