// The static rule's cost model for CPUs: decide() ranks the candidates by it as long as there are no weights for a
// device.
//
// A solver's time is a * flop / peak + b * bytes / bandwidth + c, where a, b and c are fitted to timings for each
// direction, layout and class of convolution (cost_table.inc, written by benchmarks/fit_cost.py). Peak and bandwidth
// scale with the instruction set, the number of threads and the width of the data type, so that the figures hold on
// other machines as far as their balance is similar.
#pragma once

#include <array>

#include "conv/solver.h"

namespace reformer {

// Times at the nominal rates for the multiplications of the direct algorithm and for the bytes of the three tensors.
struct CostTerms {
  double flop_us;
  double bytes_us;
};
CostTerms cost_terms(const ConvProblem& problem, const Device& device);

// Classes of convolutions with similar costs: their kind, in two halves where those differ much.
constexpr int kCostClasses = 12;
int cost_class(const ConvProblem& problem);

// The fitted model of one solver. A solver without a model gets a large estimate, so that it is chosen last.
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
