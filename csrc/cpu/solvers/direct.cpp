// Direct convolution: no matrix is formed; the filter's taps are read as shifts of packed rows. Meant for few channels
// (the first layer of a network) and few channels per group, where matrix products can't reuse data.
#include "cpu/direct/direct.h"

#include "conv/solver.h"
#include "cpu/cost.h"

namespace reformer {
namespace {

class Direct final : public Solver {
 public:
  const char* name() const override { return "direct"; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (p.dtype == DType::int8) return "it has no 8-bit integers";
    if (p.group_c() > 128) return "it has more than 128 input channels a group";
    if (int64_t{p.stride_h} * p.stride_w > 1024) return "its strides are too large";
    if (DirectSizes(p, device.threads).strip_numel() * std::max<int64_t>(4, element_size(p.dtype)) > kStripBytes)
      return "a row of all channels of a group does not fit the cache";
    const bool weight_grad = p.direction == Direction::weight_grad;
    ConvPlan plan;
    plan.us = cost_.estimate_us(p, device);
    plan.workspace_bytes = weight_grad ? direct_weight_grad_workspace(p, device) : direct_correlate_workspace(p);
    plan.run = [p, device, walk = DirectConfig(p, device.threads),
                run = weight_grad ? direct_weight_grad : direct_correlate](const ConvBuffers& buffers) {
      run(p, device, walk, buffers);
    };
    return plan;
  }

 private:
  const CostModel cost_{"direct"};
  static constexpr int64_t kStripBytes = int64_t{2} << 20;
};

}  // namespace

const Solver& direct() {
  static const Direct solver;
  return solver;
}

}  // namespace reformer
