#include "cost.h"

#include <algorithm>
#include <cstring>

namespace reformer {
namespace {

// Nominal rates of one core: fp32 flop per microsecond, and bytes per microsecond, which more than four threads share.
constexpr double kVectorFlopUs = 100e3, kPlainFlopUs = 20e3;
constexpr double kBytesUs = 15e3;
constexpr int32_t kThreadsThatSaturate = 4;

}  // namespace

CostTerms cost_terms(const ConvProblem& p, const Device& device) {
  const double flop_us = (device.isa == Isa::plain ? kPlainFlopUs : kVectorFlopUs) * device.threads;
  const double bytes = double(p.input_numel() + p.weight_numel() + p.output_numel()) * double(element_size(p.dtype));
  return {p.flops() / (p.dtype == DType::fp64 ? flop_us / 2 : flop_us),
          bytes / (kBytesUs * std::min(device.threads, kThreadsThatSaturate))};
}

int cost_class(const ConvProblem& p) {
  bool second = false;
  switch (p.kind()) {
    case Kind::pointwise: second = p.h * p.w == 1; break;  // a matrix times a few vectors
    case Kind::depthwise: second = p.r * p.s > 9 || p.group_k() > 1; break;
    case Kind::filter_3x3: second = p.stride_h > 1 || p.dilation_h > 1; break;
    case Kind::grouped:
    case Kind::stem:
    case Kind::other: break;
  }
  return 2 * int(p.kind()) + second;
}

namespace {

struct CostRow {
  const char* solver;
  int direction, layout;
  int cost_class;  // -1: all classes
  double coefficients[3];
};
struct DTypeRow {
  const char* solver;
  int direction, dtype;
  double factor;
};

#include "cost_table.inc"

}  // namespace

CostModel::CostModel(const char* solver) {
  for (auto& factors : dtype_factors_) factors.fill(1.0);
  for (const bool general : {true, false})  // rows of a single class override the general ones
    for (const CostRow& row : kCosts) {
      if (std::strcmp(row.solver, solver) != 0 || (row.cost_class < 0) != general) continue;
      auto& classes = coefficients_[size_t(row.direction)][size_t(row.layout)];
      const Coefficients fitted{row.coefficients[0], row.coefficients[1], row.coefficients[2]};
      if (general)
        classes.fill(fitted);
      else
        classes[size_t(row.cost_class)] = fitted;
    }
  for (const DTypeRow& row : kDTypeFactors)
    if (std::strcmp(row.solver, solver) == 0) dtype_factors_[size_t(row.direction)][size_t(row.dtype)] = row.factor;
}

double CostModel::estimate_us(const ConvProblem& p, const Device& device) const {
  const CostTerms terms = cost_terms(p, device);
  const Coefficients& c = coefficients_[size_t(p.direction)][size_t(p.layout)][size_t(cost_class(p))];
  return dtype_factors_[size_t(p.direction)][size_t(p.dtype)] *
         (c.flop * terms.flop_us + c.bytes * terms.bytes_us + c.fixed);
}

}  // namespace reformer
