// Any convolution as a matrix product whose windows are read while they are packed (implicit_gemm_body.h).
// A zero of the padding is multiplied like any other value: it makes NaN of an infinite weight, as with im2col.

#include <algorithm>

#include "cpu/gemm/grid.h"
#include "cpu/gemm/kernel.h"
#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"
#include "gemm_solver.h"

#define REFORMER_ISA_BODY "cpu/solvers/implicit_gemm_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {
namespace {

class ImplicitGemm final : public GemmSolver<ImplicitGemm> {
 public:
  ImplicitGemm() : GemmSolver("implicit_gemm") {}

  const char* refusal(const ConvProblem& p, const Device&) const override {
    if (p.dtype == DType::int8) return "it has no 8-bit integers";
    return nullptr;
  }

  // input_grad: the filter in the order of its sums.
  int64_t workspace_bytes(const ConvProblem& p, const Device& device) const override {
    return p.direction == Direction::input_grad ? filter_bytes(p) : GemmSolver::workspace_bytes(p, device);
  }

  template <class T>
  static void multiply(const ConvProblem& p, const Device& device, const ConvBuffers& b,
                       const typename Element<T>::Sum* bias, int64_t sum_parts) {
    REFORMER_BY_ISA(device.isa, implicit_gemm<T>)(p, device, b, bias, sum_parts);
  }
};

}  // namespace

const Solver& implicit_gemm() {
  static const ImplicitGemm solver;
  return solver;
}

}  // namespace reformer
