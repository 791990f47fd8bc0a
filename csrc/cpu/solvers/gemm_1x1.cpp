// 1x1 convolutions as matrix products that read and write the tensors in place (gemm_1x1_body.h).

#include <algorithm>

#include "conv/solver.h"
#include "cpu/cost.h"
#include "cpu/gemm/bias.h"
#include "cpu/gemm/grid.h"
#include "cpu/gemm/kernel.h"
#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"

#define REFORMER_ISA_BODY "cpu/solvers/gemm_1x1_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {
namespace {

// Number of parts of a weight gradient's sum, which the workspace holds.
int64_t sum_parts(const ConvProblem& p, const Device& device) {
  const int64_t pixels = int64_t{p.n} * p.out_h() * p.out_w();
  return weight_grad_sum_parts(p.group_k(), p.group_c(), pixels, p.groups, device.threads);
}

template <class T>
void run_as(const ConvProblem& p, const Device& device, int64_t parts, const ConvBuffers& b) {
  const SumBias<T> bias(b.bias, p.k);
  REFORMER_BY_ISA(device.isa, gemm_1x1<T>)(p, device, b, bias.data(), parts);
}

class Gemm1x1 final : public Solver {
 public:
  const char* name() const override { return "gemm_1x1"; }
  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (p.dtype == DType::int8) return "it has no 8-bit integers";
    if (!p.is_1x1()) return "the filter is not 1x1 without padding";
    const int64_t parts = p.direction == Direction::weight_grad ? sum_parts(p, device) : 1;
    ConvPlan plan;
    plan.us = cost_.estimate_us(p, device);
    if (parts > 1) plan.workspace_bytes = parts * p.weight_numel() * sum_size(p.dtype);
    plan.run = [p, device, parts](const ConvBuffers& buffers) {
      dispatch(p.dtype, [&](auto element) { run_as<decltype(element)>(p, device, parts, buffers); });
    };
    return plan;
  }

 private:
  const CostModel cost_{"gemm_1x1"};
};

}  // namespace

const Solver& gemm_1x1() {
  static const Gemm1x1 solver;
  return solver;
}

}  // namespace reformer
