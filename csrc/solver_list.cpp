#include "solver_list.h"

namespace reformer {

const std::vector<const Solver*>& solvers() {
  // clang-format off: one line a solver
  static const std::vector<const Solver*> list = {
      &aten(),
      &aten_nhwc(),
      &aten_nchw(),
      &gemm_1x1(),
      &direct_depthwise(),
      &direct(),
      &implicit_gemm(),
      &winograd_2x4(),
      &winograd_4x4(),
      &gpu_depthwise_2x4(),
      &gpu_depthwise_2x7(),
      &gpu_depthwise_4x4(),
      &gpu_depthwise_4x7(),
      &gpu_depthwise_planes_wide(),
      &gpu_depthwise_planes_tall(),
      &gpu_gemm_128x256(),
      &gpu_gemm_128x128(),
      &gpu_gemm_128x64(),
      &gpu_gemm_64x128(),
      &gpu_gemm_64x64(),
      &gpu_gemm_128x32(),
      &gpu_gemm_64x32(),
      &gpu_gemm_32x32(),
      &gpu_packed_gemm_128x64(),
      &gpu_packed_gemm_64x64(),
      &gpu_packed_gemm_128x32(),
      &gpu_tma_depthwise(),
      &gpu_tma_gemm_128x256(),
      &gpu_tma_gemm_128x192(),
      &gpu_tma_gemm_128x128(),
      &gpu_tma_gemm_128x64(),
      &gpu_tma_gemm_64x128(),
      &gpu_tma_gemm_64x64(),
      &reference(),
  };
  // clang-format on
  return list;
}

const Solver* find_solver(std::string_view name) {
  for (const Solver* solver : solvers())
    if (name == solver->name()) return solver;
  return nullptr;
}

}  // namespace reformer
