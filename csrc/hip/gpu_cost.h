// Expected times of kernels on a GPU of which no timings are known.
#pragma once

#include <algorithm>

#include "conv/problem.h"

namespace reformer {

// Expected microseconds of a kernel that reaches this share of an H200's bandwidth or arithmetic, and starts in 3: for
// ranking until weights exist for a GPU.
inline double gpu_estimate_us(const ConvProblem& p, double share) {
  constexpr double kBytesPerUs = 4.3e6, kFlopsPerUs16 = 790e6, kFlopsPerUs32 = 300e6, kStartUs = 3;
  const double elements = double(p.input_numel()) + double(p.weight_numel()) + double(p.output_numel());
  const int64_t size = element_size(p.dtype);
  return kStartUs +
         std::max(elements * double(size) / kBytesPerUs, p.flops() / (size <= 2 ? kFlopsPerUs16 : kFlopsPerUs32)) /
             share;
}

// Expected microseconds of a good kernel for the problem and of a pass that reads its result and writes another: what a
// kernel that runs a program itself competes with. On 541 problems in NHWC the selector's choice, where this allows it,
// took 1.014 times as long as the best there is, a pass after its choice of all kernels 1.17 times. Good kernels of
// depthwise convolutions reach half as much of the bandwidth as others.
inline double gpu_unfused_us(const ConvProblem& p) {
  constexpr double kPassBytesPerUs = 3.6e6, kPassUs = 2.5;
  const double share = p.groups > 1 && p.groups == p.c ? 0.4 : 0.8;
  return gpu_estimate_us(p, share) + kPassUs + 2.0 * double(p.output_numel() * element_size(p.dtype)) / kPassBytesPerUs;
}

}  // namespace reformer
