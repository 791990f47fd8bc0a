// What the solvers that are matrix products on the CPU have in common: the sum of a weight gradient may be split into
// parts, which lie in the workspace, and the bias comes in the data type of the accumulators.
#pragma once

#include <cstdint>

#include "conv/solver.h"
#include "cpu/cost.h"
#include "cpu/gemm/bias.h"
#include "cpu/gemm/grid.h"

namespace reformer {

// A subclass's multiply<T>(problem, device, buffers, bias, sum_parts) computes it.
template <class Subclass>
class GemmSolver : public Solver {
 public:
  explicit GemmSolver(const char* name) : name_(name), cost_(name) {}

  const char* name() const final { return name_; }
  double estimate_us(const ConvProblem& p, const Device& device) const final { return cost_.estimate_us(p, device); }

  int64_t workspace_bytes(const ConvProblem& p, const Device& device) const override {
    const int64_t parts = sum_parts(p, device);
    return parts > 1 ? parts * filter_bytes(p) : 0;
  }

  void run(const ConvProblem& p, const Device& device, ConvCall& call) const final {
    const ConvBuffers buffers = call.buffers(workspace_bytes(p, device));
    dispatch(p.dtype, [&](auto element) {
      using T = decltype(element);
      const SumBias<T> bias(buffers.bias, p.k);
      Subclass::template multiply<T>(p, device, buffers, bias.data(), sum_parts(p, device));
    });
  }

 protected:
  // The filter in the data type of the accumulators.
  static int64_t filter_bytes(const ConvProblem& p) { return p.weight_numel() * (p.dtype == DType::fp64 ? 8 : 4); }

 private:
  static int64_t sum_parts(const ConvProblem& p, const Device& device) {
    if (p.direction != Direction::weight_grad) return 1;
    const int64_t columns = int64_t{p.group_c()} * p.r * p.s, depth = int64_t{p.n} * p.out_h() * p.out_w();
    return weight_grad_sum_parts(p.group_k(), columns, depth, p.groups, device.threads);
  }

  const char* name_;
  const CostModel cost_;
};

}  // namespace reformer
