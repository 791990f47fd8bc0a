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
