// Depthwise convolution (each group has one input channel) with planes as lanes: see cpu/depthwise.

#include <algorithm>

#include "conv/solver.h"
#include "cpu/cost.h"
#include "cpu/depthwise/correlate.h"
#include "cpu/depthwise/weight_grad.h"

namespace reformer {
namespace {

constexpr int64_t kMaxScratchBytes = int64_t{2} << 20;
constexpr int32_t kMaxSummedChannels = 512;

// Upper bound on a thread's scratch memory for a band of one row, for any direction and vector width.
int64_t row_scratch_bytes(const ConvProblem& p) {
  const int64_t vectors = p.layout == Layout::nhwc ? depthwise::kMaxBlockVectors : 1;
  const int64_t pixel_bytes = 64 * vectors, overhang = 8 * int64_t{p.stride_w} + int64_t{p.s} * p.dilation_w;
  const int64_t width = std::max<int64_t>(p.w, p.out_w()) + 2 * int64_t{p.pad_w} + overhang;
  const int64_t rows = std::min<int64_t>(std::max(p.h, p.out_h()), int64_t{p.r} * p.dilation_h);
  return pixel_bytes * ((rows + 1) * width + 2 * int64_t{p.r} * p.s + 1);
}

class DirectDepthwise final : public Solver {
 public:
  const char* name() const override { return "direct_depthwise"; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (p.dtype == DType::int8) return "it has no 8-bit integers";
    if (p.group_c() != 1) return "a group has more than one input channel";
    if (row_scratch_bytes(p) > kMaxScratchBytes) return "its rows take more scratch memory than a thread keeps";
    const bool weight_grad = p.direction == Direction::weight_grad;
    ConvPlan plan;
    plan.us = cost_.estimate_us(p, device);
    plan.workspace_bytes = weight_grad ? depthwise::weight_grad_workspace_bytes(p, device) : 0;
    // A gradient is summed one by one over the output channels of its input channel, with an error that grows with
    // their number.
    if (p.direction == Direction::input_grad && p.group_k() > kMaxSummedChannels) plan.inaccuracy = kInaccurate;
    plan.run = [p, device, run = weight_grad ? depthwise::weight_grad : depthwise::correlate](
                   const ConvBuffers& buffers) { run(p, device, buffers); };
    return plan;
  }

 private:
  const CostModel cost_{"direct_depthwise"};
};

}  // namespace

const Solver& direct_depthwise() {
  static const DirectDepthwise solver;
  return solver;
}

}  // namespace reformer
