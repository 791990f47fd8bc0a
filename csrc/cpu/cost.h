// The static rule's cost model for CPUs: until weights exist for a device, decide() ranks the candidates by it.
//
// A solver's time is a * flop / peak + b * bytes / bandwidth + c, with a, b and c fitted to timings for each direction,
// layout and class of convolution (cost_table.inc, written by benchmarks/fit_cost.py). Peak and bandwidth scale with
// the instruction set, the number of threads and the width of the data type, so that the figures carry over to other
// machines as far as their balance is alike.
#pragma once

#include <array>

#include "conv/solver.h"

namespace reformer {

// Times of the direct algorithm's multiplications and of the three tensors' bytes at the nominal rates.
struct CostTerms {
  double flop_us;
  double bytes_us;
};
CostTerms cost_terms(const ConvProblem& problem, const Device& device);

// Convolutions whose time goes the same way: their kind, in two halves where those differ much.
constexpr int kCostClasses = 12;
int cost_class(const ConvProblem& problem);

// The fitted model of one solver. One that has none expects to be slow, so that it is chosen last.
class CostModel {
 public:
  explicit CostModel(const char* solver);
  double estimate_us(const ConvProblem& problem, const Device& device) const;

 private:
  struct Coefficients {
    double flop = 10, bytes = 10, fixed = 100;
  };
  static constexpr size_t kDirections = 3, kLayouts = 2, kDTypes = 5;

  std::array<std::array<std::array<Coefficients, kCostClasses>, kLayouts>, kDirections> coefficients_;
  std::array<std::array<double, kDTypes>, kDirections> dtype_factors_;
};

}  // namespace reformer
