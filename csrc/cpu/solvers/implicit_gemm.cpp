// Any convolution as a matrix product whose windows are read while they are packed (implicit_gemm_body.h).
// A zero of the padding is multiplied like any other value: it makes NaN of an infinite weight, as with im2col.

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
void run_as(const ConvProblem& p, const Device& device, const ConvBuffers& b) {
  const SumBias<T> bias(b.bias, p.k);
  REFORMER_BY_ISA(device.isa, implicit_gemm<T>)(p, device, b, bias.data(), sum_parts(p, device));
}

class ImplicitGemm final : public Solver {
 public:
  const char* name() const override { return "implicit_gemm"; }
  const char* refusal(const ConvProblem& p, const Device&) const override {
    if (p.dtype == DType::int8) return "it has no 8-bit integers";
    return nullptr;
  }
  // input_grad: the filter in the order of its sums. weight_grad: the parts of its sums.
  int64_t workspace_bytes(const ConvProblem& p, const Device& device) const override {
    const int64_t parts = sum_parts(p, device);
    if (p.direction == Direction::forward || (p.direction == Direction::weight_grad && parts == 1)) return 0;
    return parts * p.weight_numel() * (p.dtype == DType::fp64 ? 8 : 4);
  }
  double estimate_us(const ConvProblem& p, const Device& device) const override { return cost_.estimate_us(p, device); }
  void run(const ConvProblem& p, const Device& device, ConvCall& call) const override {
    const ConvBuffers buffers = call.buffers(workspace_bytes(p, device));
    dispatch(p.dtype, [&](auto element) { run_as<decltype(element)>(p, device, buffers); });
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
