// 1x1 convolutions as matrix products that read and write the tensors in place (gemm_1x1_body.h).

#include <algorithm>

#include "cpu/gemm/grid.h"
#include "cpu/gemm/kernel.h"
#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"
#include "gemm_solver.h"

#define REFORMER_ISA_BODY "cpu/solvers/gemm_1x1_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {
namespace {

class Gemm1x1 final : public GemmSolver<Gemm1x1> {
 public:
  Gemm1x1() : GemmSolver("gemm_1x1") {}

  const char* refusal(const ConvProblem& p, const Device&) const override {
    if (p.dtype == DType::int8) return "it has no 8-bit integers";
    if (!p.is_1x1()) return "the filter is not 1x1 without padding";
    return nullptr;
  }

  template <class T>
  static void multiply(const ConvProblem& p, const Device& device, const ConvBuffers& b,
                       const typename Element<T>::Sum* bias, int64_t sum_parts) {
    REFORMER_BY_ISA(device.isa, gemm_1x1<T>)(p, device, b, bias, sum_parts);
  }
};

}  // namespace

const Solver& gemm_1x1() {
  static const Gemm1x1 solver;
  return solver;
}

}  // namespace reformer
