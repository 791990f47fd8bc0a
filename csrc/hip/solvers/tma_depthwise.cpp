// Host side of hip/kernels/tma_depthwise.hip.
#include <limits>

#include "conv/solver.h"
#include "depthwise_finish.h"
#include "hip/gpu_model.h"
#include "hip/kernels/tma_depthwise_plan.h"
#include "jit/gpu.h"
#include "memo.h"

namespace reformer {
namespace {

class GpuTmaDepthwise final : public Solver {
 public:
  const char* name() const override { return "gpu_tma_depthwise"; }
  bool runs_on(DeviceKind kind) const override { return kind == DeviceKind::cuda; }

  const char* refusal(const ConvProblem& p, const Device& device) const override {
    if (device.arch != "sm_90") return "it is for Hopper GPUs (sm_90)";
    if (const char* why = refuse_tma_depthwise(p)) return why;
    if (plan(p, device).launch.threads == 0) return "its tiles take more shared memory than there is";
    return nullptr;
  }

  double estimate_us(const ConvProblem& p, const Device& device) const override {
    return tma_depthwise_us(p, plan(p, device), usual_units(device.arch));
  }

  int64_t workspace_bytes(const ConvProblem& p, const Device& device) const override {
    return plan(p, device).workspace_bytes;
  }

  void run(const ConvProblem& p, const Device& device, ConvCall& call) const override {
    TmaDepthwisePlan plan = this->plan(p, device);
    const ConvBuffers b = call.buffers(plan.workspace_bytes);
    bind(plan, p, b.x, b.y, b.w, b.bias, b.workspace);
    gpu::launch(tma_depthwise_kernel(p)->entry, plan.launch, b.queue, plan.args);
    if (p.direction == Direction::weight_grad) finish_depthwise_weight_grad(p, plan.args.blocks, b);
  }

 private:
  // With the tile that is expected to be best; without threads if none fits.
  TmaDepthwisePlan plan(const ConvProblem& p, const Device& device) const {
    return memo_.get(p, device, [&] { return best(p, device); });
  }
  static TmaDepthwisePlan best(const ConvProblem& p, const Device& device) {
    const int units = usual_units(device.arch);
    TmaDepthwisePlan best, tried;
    best.launch.threads = 0;
    double least = std::numeric_limits<double>::infinity();
    for (const TmaDepthwiseTile& tile : tma_depthwise_tiles(p)) {
      if (!plan_tma_depthwise(p, tile, units, tried)) continue;
      const double us = tma_depthwise_us(p, tried, units);
      if (us < least) least = us, best = tried;
    }
    return best;
  }

  const Memo<TmaDepthwisePlan> memo_;
};

}  // namespace

const Solver& gpu_tma_depthwise() {
  static const GpuTmaDepthwise solver;
  return solver;
}

}  // namespace reformer
