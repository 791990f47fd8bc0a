#include "products.h"

#include "solver_list.h"

namespace reformer {
namespace {

// Columns that tiles compute, relative to those of the result.
double with_padding(const ConvProblem& p, int columns) { return double((p.k + columns - 1) / columns * columns) / p.k; }

}  // namespace

// From benchmarks/results/h200/product_epilogues.csv: from a depth of 512 on, ping-pong kernels hide the most of a
// program behind the next tile's product. In others the bytes bind, and two blocks of smaller tiles a multiprocessor
// take turns as well.
std::vector<const Solver*> product_solvers(const ConvProblem& p) {
  const Solver* const wide = find_solver("gpu_tma_gemm_pingpong_128x192");
  const Solver* const square = find_solver("gpu_tma_gemm_pingpong_128x128");
  const Solver* const cooperative = find_solver("gpu_tma_gemm_128x128");
  const Solver* const small = find_solver("gpu_tma_gemm_128x64");
  if (p.c < 512) return {cooperative, square, small};
  if (with_padding(p, 192) < 1.1 * with_padding(p, 128)) return {wide, square, cooperative, small};
  return {square, wide, cooperative, small};
}

}  // namespace reformer
