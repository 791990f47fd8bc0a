#include "products.h"

#include "solver_list.h"

namespace reformer {
namespace {

// Columns that tiles of so many compute, relative to those of the result.
double with_padding(int columns, int tile) { return double((columns + tile - 1) / tile * tile) / columns; }

}  // namespace

// From benchmarks/results/h200/product_epilogues.csv: from a depth of 512 on, ping-pong kernels hide the most of a
// program behind the next tile's product. In others the bytes bind, and two blocks of smaller tiles a multiprocessor
// take turns as well.
std::vector<const Solver*> product_solvers(const ConvProblem& p) {
  const Solver* const wide = find_solver("gpu_tma_gemm_pingpong_128x192");
  const Solver* const square = find_solver("gpu_tma_gemm_pingpong_128x128");
  const Solver* const cooperative = find_solver("gpu_tma_gemm_128x128");
  const Solver* const small = find_solver("gpu_tma_gemm_128x64");
  const bool forward = p.direction == Direction::forward;
  const int columns = forward ? p.k : p.c, depth = forward ? p.c : p.k;
  if (depth < 512) return {cooperative, square, small};
  if (with_padding(columns, 192) < 1.1 * with_padding(columns, 128)) return {wide, square, cooperative, small};
  return {square, wide, cooperative, small};
}

}  // namespace reformer
