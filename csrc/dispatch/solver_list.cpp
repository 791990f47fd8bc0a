#include "solver_list.h"

// One line for each solver. The algorithm's file defines a function of this name, which returns the only instance.
// clang-format off
#define REFORMER_SOLVERS(X) \
  X(aten) \
  X(aten_nhwc) \
  X(aten_nchw) \
  X(gemm_1x1) \
  X(direct_depthwise) \
  X(direct) \
  X(implicit_gemm) \
  X(winograd_2x4) \
  X(winograd_4x4) \
  X(gpu_depthwise_2x4) \
  X(gpu_depthwise_2x7) \
  X(gpu_depthwise_4x4) \
  X(gpu_depthwise_4x7) \
  X(gpu_depthwise_planes_wide) \
  X(gpu_depthwise_planes_tall) \
  X(gpu_gemm_128x256) \
  X(gpu_gemm_128x128) \
  X(gpu_gemm_128x64) \
  X(gpu_gemm_64x128) \
  X(gpu_gemm_64x64) \
  X(gpu_gemm_128x32) \
  X(gpu_gemm_64x32) \
  X(gpu_gemm_32x32) \
  X(gpu_packed_gemm_128x64) \
  X(gpu_packed_gemm_64x64) \
  X(gpu_packed_gemm_128x32) \
  X(gpu_tma_depthwise) \
  X(gpu_tma_gemm_128x256) \
  X(gpu_tma_gemm_128x192) \
  X(gpu_tma_gemm_128x128) \
  X(gpu_tma_gemm_128x64) \
  X(gpu_tma_gemm_64x128) \
  X(gpu_tma_gemm_64x64) \
  X(gpu_tma_gemm_pingpong_128x192) \
  X(gpu_tma_gemm_pingpong_128x128) \
  X(reference)
// clang-format on

namespace reformer {

#define REFORMER_DECLARE(name) const Solver& name();
REFORMER_SOLVERS(REFORMER_DECLARE)
#undef REFORMER_DECLARE
const std::vector<const Solver*>& miopen_solvers();  // hip/miopen/solver.cpp: AMD's, under MIOpen's own names

const std::vector<const Solver*>& solvers() {
#define REFORMER_ADDRESS(name) &name(),
  static const std::vector<const Solver*> list = [] {
    std::vector<const Solver*> all = {REFORMER_SOLVERS(REFORMER_ADDRESS)};
    all.insert(all.end(), miopen_solvers().begin(), miopen_solvers().end());
    return all;
  }();
#undef REFORMER_ADDRESS
  return list;
}

const Solver* find_solver(std::string_view name) {
  for (const Solver* solver : solvers())
    if (name == solver->name()) return solver;
  return nullptr;
}

}  // namespace reformer
