// Any convolution as a matrix product whose windows are read while they are packed (implicit_gemm_body.h). The zeros of
// the padding are multiplied like other values: times an infinite weight they give NaN, as with im2col.

#include <algorithm>

#include "conv/solver.h"
#include "cpu/cost.h"
#include "cpu/gemm/bias.h"
#include "cpu/gemm/grid.h"
#include "cpu/gemm/kernel.h"
#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"

#define REFORMER_ISA_BODY "cpu/solvers/implicit_gemm_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {
namespace {

int64_t sum_parts(const ConvProblem& p, const Device& device) {
  if (p.direction != Direction::weight_grad) return 1;
  const int64_t windows = int64_t{p.n} * p.out_h() * p.out_w();
  return weight_grad_sum_parts(p.group_k(), int64_t{p.group_c()} * p.r * p.s, windows, p.groups, device.threads);
}

template <class T>
void run_as(const ConvProblem& p, const Device& device, int64_t parts, const ConvBuffers& b) {
  const SumBias<T> bias(b.bias, p.k);
  REFORMER_BY_ISA(device.isa, implicit_gemm<T>)(p, device, b, bias.data(), parts);
}

class ImplicitGemm final : public Solver {
 public:
  const char* name() const override { return "implicit_gemm"; }
  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (p.dtype == DType::int8) return "it has no 8-bit integers";
    const int64_t parts = sum_parts(p, device);
    ConvPlan plan;
    plan.us = cost_.estimate_us(p, device);
    // input_grad: the filter in the order of the sums. weight_grad: the parts of the sums.
    if (p.direction == Direction::input_grad || parts > 1)
      plan.workspace_bytes = parts * p.weight_numel() * sum_size(p.dtype);
    plan.run = [p, device, parts](const ConvBuffers& buffers) {
      dispatch(p.dtype, [&](auto element) { run_as<decltype(element)>(p, device, parts, buffers); });
    };
    return plan;
  }

 private:
  const CostModel cost_{"implicit_gemm"};
};

}  // namespace

const Solver& implicit_gemm() {
  static const ImplicitGemm solver;
  return solver;
}

}  // namespace reformer
